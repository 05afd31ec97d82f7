//! What goes wrong in the model, and when.

use crate::plan::Fault;
use crate::queue::{MILLISECOND, Moment};
use crate::world::{Event, State, World};

impl Fault {
    pub(crate) fn begins(&self) -> Moment {
        match self {
            Self::Freeze { from, .. }
            | Self::KillLeader { from, .. }
            | Self::CutOff { from, .. } => *from,
            Self::DeadLock { .. } => 0,
        }
    }
}

impl World<'_> {
    pub(crate) fn fails(&mut self, fault: Fault) {
        let now = self.queue.now;
        match fault {
            Fault::Freeze { shard, lasts, .. } => self.redis.freeze(shard, now + lasts),
            Fault::KillLeader { key, .. } => self.kills_leader(key, fault),
            Fault::CutOff { processes, .. } => {
                for process in self.processes.iter_mut().take(processes as usize) {
                    process.is_cut_off = true;
                }
            }
            Fault::DeadLock { key, lasts } => self.redis.leave_lock(key, now + lasts),
        }
    }

    /// Kills the process that is half through its computation, or looks again
    /// a little later.
    fn kills_leader(&mut self, key: u32, fault: Fault) {
        let now = self.queue.now;
        let leader = (0..self.plan.processes).find(|process| {
            let seat = &self.seats[self.seat_of(*process, key) as usize];
            let is_half_through = now >= seat.started + self.plan.origin / 2;
            let is_alive = !self.processes[*process as usize].is_dead;
            seat.state == State::Computing && seat.lease.is_some() && is_half_through && is_alive
        });
        match leader {
            Some(process) => {
                self.processes[process as usize].is_dead = true;
                self.tally.killed.push((key, now));
            }
            None => self.queue.note(now + MILLISECOND, Event::Fails(fault)),
        }
    }
}
