//! The steps that are possible in a state of the world.

use super::state::*;
use crate::remote::link::known::Liveness;

impl WorldModel {
    /// Calls `add` with each step that is possible in a state, and the state after it.
    pub(super) fn steps(&self, world: &World, add: &mut impl FnMut(WorldStep, World)) {
        let mut then = |name, process, server, change: &dyn Fn(&mut World)| {
            let mut after = world.clone();
            change(&mut after);
            self.replicate(&mut after);
            add(WorldStep { name, process, server }, after);
        };
        for id in 0..self.scope.processes {
            match world.processes[id].life {
                Life::NotYet => self.start_steps(world, id, &mut then),
                Life::Runs => {
                    self.connection_steps(world, id, &mut then);
                    self.read_steps(world, id, &mut then);
                    self.write_steps(world, id, &mut then);
                }
                Life::Killed => {}
            }
        }
        self.server_steps(world, &mut then);
    }

    fn targets(&self, world: &World) -> Vec<usize> {
        match self.scope.strays {
            true => (0..2).filter(|it| world.servers[*it].is_primary).collect(),
            false => vec![self.current(world)],
        }
    }

    fn start_steps(&self, world: &World, id: usize, then: &mut Then<'_>) {
        if world.is_promoted || !self.scope.promotes || self.scope.starts_early {
            for server in self.targets(world) {
                then("starts, both connections to", Some(id), Some(server), &|it| {
                    self.start(it, id, server);
                });
            }
        }
    }

    fn connection_steps(&self, world: &World, id: usize, then: &mut Then<'_>) {
        let (process, scope) = (&world.processes[id], &self.scope);
        let has_moved = world.is_promoted || !scope.promotes;
        match process.commands {
            None => {
                for server in self.targets(world) {
                    then("connects its commands to", Some(id), Some(server), &|it| {
                        self.connect(it, id, server);
                    });
                }
            }
            Some(server) => {
                if world.command_cuts < scope.command_cuts && has_moved {
                    then("loses its command connection", Some(id), None, &|it| {
                        it.command_cuts += 1;
                        it.processes[id].commands = None;
                    });
                }
                if process.beat.is_none() {
                    let name =
                        if scope.has_late_beats { "sends a heartbeat to" } else { "heartbeat at" };
                    then(name, Some(id), Some(server), &|it| {
                        self.beat(it, id, scope.has_late_beats);
                    });
                }
                if process.beat.is_none() && scope.has_late_beats {
                    then("has the log checked at", Some(id), Some(server), &|it| {
                        it.processes[id].link.verified_at = None;
                        self.beat(it, id, true);
                    });
                }
                if let Some(beat) = process.beat {
                    then("takes the heartbeat's reply", Some(id), None, &|it| {
                        it.processes[id].beat = None;
                        self.take_beat(it, id, beat);
                    });
                }
                if process.is_to_tell() {
                    then("tells its journal at", Some(id), Some(server), &|it| {
                        self.tell_journal(it, id);
                    });
                }
            }
        }
        match process.subscription {
            None => {
                for server in self.targets(world) {
                    then("subscribes at", Some(id), Some(server), &|it| {
                        self.subscribe(it, id, server);
                    });
                }
            }
            Some(_) if world.subscription_cuts < scope.subscription_cuts && has_moved => {
                then("loses its subscription", Some(id), None, &|it| {
                    it.subscription_cuts += 1;
                    (it.processes[id].subscription, it.processes[id].inbox) = (None, None);
                });
            }
            Some(_) => {}
        }
        if process.inbox.is_some() {
            then("hears the message", Some(id), None, &|it| self.hear(it, id));
        }
        if process.link.next_due().is_some() {
            then("tells again what it has heard", Some(id), None, &|it| self.tell_again(it, id));
        }
        if world.opens < scope.opens && !process.link.is_away {
            then("its breaker opens", Some(id), None, &|it| {
                it.opens += 1;
                it.processes[id].link.has_failed();
                let _ = it.processes[id].link.is_away();
            });
        }
        let is_heard = |(other, it): (usize, &Shared<WorldProcess>)| {
            other != id && it.life == Life::Runs && it.knows >= process.returned
        };
        if world.kills < scope.kills
            && process.returned != 0
            && world.processes.iter().enumerate().any(is_heard)
        {
            then("is killed", Some(id), None, &|it| {
                it.kills += 1;
                it.processes[id] = self.process(Life::Killed);
            });
        }
    }

    fn read_steps(&self, world: &World, id: usize, then: &mut Then<'_>) {
        let (process, scope) = (&world.processes[id], &self.scope);
        let server = process.commands;
        let primary = server.filter(|server| world.servers[*server].is_primary);
        match process.reader {
            WorldReader::Idle => {
                let may = scope.readers & (1 << id) != 0 && world.reads < scope.reads;
                if !may || process.copy.is_some() || !process.may_ask() {
                    return;
                }
                if scope.resends {
                    then("sends GET", Some(id), None, &|it| {
                        it.reads += 1;
                        it.processes[id].reader = WorldReader::Asked { is_void: false };
                    });
                } else if let Some(server) = server {
                    then("GET at", Some(id), Some(server), &|it| {
                        it.reads += 1;
                        it.processes[id].reader = got(it, server, false);
                    });
                }
            }
            WorldReader::Asked { is_void } => {
                if let Some(server) = server {
                    then("GET is answered by", Some(id), Some(server), &|it| {
                        it.processes[id].reader = got(it, server, is_void);
                    });
                }
            }
            WorldReader::Got { entry, .. } => {
                let is_behind = self.liveness(world, id, &entry) == Liveness::Behind;
                let name = if is_behind { "gives the reply up" } else { "judges the reply" };
                then(name, Some(id), None, &|it| self.judge(it, id));
            }
            WorldReader::Missed if !process.may_ask() => {}
            WorldReader::Missed if scope.resends => {
                then("sends acquire", Some(id), None, &|it| {
                    let stamp = it.processes[id].link.stamp();
                    it.processes[id].reader = WorldReader::Asking { stamp, is_void: false };
                });
            }
            WorldReader::Missed => {
                if let Some(server) = primary {
                    then("acquires at", Some(id), Some(server), &|it| {
                        let (stamp, version) = (it.processes[id].link.stamp(), it.removals);
                        it.servers[server].data.right = id + 1;
                        it.processes[id].reader =
                            WorldReader::Granted { stamp, version, is_void: false };
                    });
                }
            }
            WorldReader::Asking { stamp, is_void } => {
                if let Some(server) = primary {
                    then("acquire is answered by", Some(id), Some(server), &|it| {
                        it.servers[server].data.right = id + 1;
                        let version = it.removals;
                        it.processes[id].reader = WorldReader::Granted { stamp, version, is_void };
                    });
                }
            }
            WorldReader::Granted { stamp, version, is_void } => {
                then("computes", Some(id), None, &|it| {
                    let value = it.database;
                    it.processes[id].reader =
                        WorldReader::Computed { value, stamp, version, is_void };
                });
            }
            WorldReader::Computed { .. } => {
                then("fills and keeps a copy", Some(id), server, &|it| self.fill(it, id));
            }
        }
    }

    fn write_steps(&self, world: &World, id: usize, then: &mut Then<'_>) {
        let (process, scope) = (&world.processes[id], &self.scope);
        let Some(server) = process.commands else {
            if matches!(process.writer, WorldWriter::Idle) {
                self.begin_write_step(world, id, then);
            }
            return;
        };
        match process.writer {
            WorldWriter::Idle => self.begin_write_step(world, id, then),
            WorldWriter::Begun { value, asked } if scope.what == What::Key => {
                if !world.servers[server].is_primary {
                    return then("is refused; the call returns", Some(id), None, &|it| {
                        self.is_refused(it, id);
                        self.return_write(it, id, value, true);
                    });
                }
                then("removes the key at", Some(id), Some(server), &|it| {
                    let version = self.remove(it, server);
                    it.processes[id].writer = WorldWriter::Removed { value, asked, version };
                });
            }
            WorldWriter::Begun { value, asked } | WorldWriter::Removed { value, asked, .. } => {
                then("announces; the call returns, at", Some(id), Some(server), &|it| {
                    self.announce_write(it, id, value, asked);
                });
            }
        }
    }

    fn begin_write_step(&self, world: &World, id: usize, then: &mut Then<'_>) {
        if world.writes < self.scope.writes && self.scope.writers & (1 << id) != 0 {
            then("writes the database, begins to invalidate", Some(id), None, &|it| {
                self.begin_write(it, id);
            });
        }
    }

    fn server_steps(&self, world: &World, then: &mut Then<'_>) {
        let scope = &self.scope;
        if scope.lags && world.is_linked && !world.has_lagged {
            then("the replica stops to follow", None, None, &|it| {
                (it.is_linked, it.has_lagged) = (false, true);
            });
        }
        if scope.promotes && !world.is_promoted {
            then("B is promoted; A goes on", None, None, &|it| {
                (it.is_promoted, it.is_linked) = (true, false);
                it.servers[1].is_primary = true;
            });
        }
        if scope.demotes && world.is_promoted && !world.is_demoted {
            then("A becomes a replica of B", None, None, &|it| {
                self.demote(it, scope.closes_on_demotion);
            });
        }
        if scope.restarts && !world.has_restarted {
            match world.servers[0].snapshot {
                None => then("A saves a snapshot", None, None, &|it| {
                    it.servers[0].snapshot = Some(it.servers[0].data);
                }),
                Some(data) => then("A restarts from its snapshot", None, None, &|it| {
                    it.ids += 1;
                    (it.has_restarted, it.is_linked) = (true, false);
                    it.servers[0] =
                        WorldServer { data, is_primary: true, id: it.ids, snapshot: None };
                    self.close_connections(it, 0);
                }),
            }
        }
    }
}

type Then<'a> = dyn FnMut(&'static str, Option<usize>, Option<usize>, &dyn Fn(&mut World)) + 'a;

fn got(world: &World, server: usize, is_void: bool) -> WorldReader {
    let slot = world.servers[server].data.slot;
    slot.map_or(WorldReader::Missed, |entry| WorldReader::Got { entry, is_void })
}
