//! The world around the link, as small as it can be: two servers that both take writes for a while,
//! processes with two connections each, one key with one tag. Every state it can reach is searched
//! (`search.rs`); the links in it are the product's own.
#![allow(clippy::unused_self, reason = "all that happens is written alike")]

use super::super::journal::JournalWork;
use super::super::known::{JudgedEntry, OwnItems, judge_by};
use super::super::{Asked, Link, is_rolled_back, items_of_keys};
use std::sync::LazyLock;

use super::state::*;
use crate::clock::Tick;
use crate::key::{Key, Tag};
use crate::lease::grant::{Epoch, Stamp, Version};
use crate::remote::link::known::Liveness;
use crate::remote::log::{LogHeader, LogItem, LogPositions, LogReply, LogUpdate};

/// Time stands still: copies are valid without limit, and timers fire at any time. That allows more
/// histories than there are.
pub(super) const NOW: Tick = Tick::from_nanos(0);

/// All that an invalidation of the key ends: a URI has several keys, of which the log names one.
fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        #[cfg(feature = "http")]
        {
            let (scope, scheme, host, resource) = (b"", b"http", b"x", b"/");
            let name = crate::key::UriName { scope, scheme, host, resource };
            name.primary_keys().chain([name.anchor()]).collect()
        }
        #[cfg(not(feature = "http"))]
        vec!["k".into()]
    });
    &KEYS
}

/// The key under which the value stands; of a URI not the one that the log names.
fn key() -> Key {
    keys()[keys().len().min(2) - 1].clone()
}

fn tag() -> Tag {
    "t".into()
}

impl WorldProcess {
    pub(super) fn ends(&mut self) {
        self.copy = None;
        match &mut self.reader {
            WorldReader::Idle | WorldReader::Missed => {}
            WorldReader::Asked { is_void }
            | WorldReader::Got { is_void, .. }
            | WorldReader::Asking { is_void, .. }
            | WorldReader::Granted { is_void, .. }
            | WorldReader::Computed { is_void, .. } => *is_void = true,
        }
    }

    /// Returns whether it serves its copy.
    pub(super) fn serves(&self) -> Option<u8> {
        self.copy.filter(|_| self.link.valid_until().covers(NOW))
    }

    /// Whether a caller may ask the remote now.
    pub(super) fn may_ask(&self) -> bool {
        self.link.is_prepared(NOW)
            && !self.link.is_away
            && matches!(self.writer, WorldWriter::Idle)
            && !self.link.journal.concerns(&key())
    }

    pub(super) fn is_to_tell(&self) -> bool {
        !self.link.journal.is_empty() && matches!(self.writer, WorldWriter::Idle)
    }
}

impl WorldModel {
    pub(super) fn beginning(&self) -> World {
        let log = WorldLog { epoch: 1, server: 1, ..WorldLog::default() };
        let mut data = WorldData { log, ..WorldData::default() };
        if self.scope.is_stored {
            data.slot = Some(WorldEntry { value: 1, stamp: stamp(&log), version: 0 });
        }
        let server = |is_primary, id| WorldServer { data, is_primary, id, snapshot: None };
        let mut world = World {
            servers: [server(true, 1), server(false, 2)],
            processes: (0..self.scope.processes).map(|_| self.process(Life::NotYet)).collect(),
            database: 1,
            epochs: 1,
            removals: 0,
            ids: 2,
            is_linked: true,
            has_lagged: false,
            is_promoted: false,
            is_demoted: false,
            has_restarted: false,
            reads: 0,
            writes: 0,
            command_cuts: 0,
            subscription_cuts: 0,
            opens: 0,
            kills: 0,
            done: 0,
        };
        for id in 0..self.scope.processes {
            if self.scope.late & (1 << id) == 0 {
                self.start(&mut world, id, 0);
            }
        }
        world
    }

    pub(super) fn process(&self, life: Life) -> Shared<WorldProcess> {
        let mut link = Link::new(100, 100);
        link.without.clone_from(&self.without);
        Shared::new(WorldProcess {
            life,
            commands: None,
            connection: 0,
            subscription: None,
            link: Shared::new(link),
            copy: None,
            reader: WorldReader::Idle,
            writer: WorldWriter::Idle,
            beat: None,
            inbox: None,
            knows: 0,
            returned: 0,
            floor: 0,
        })
    }

    pub(super) fn start(&self, world: &mut World, id: usize, server: usize) {
        world.processes[id] = self.process(Life::Runs);
        self.subscribe(world, id, server);
        self.connect(world, id, server);
        self.beat(world, id, false);
    }

    pub(super) fn connect(&self, world: &mut World, id: usize, server: usize) {
        let process = &mut world.processes[id];
        process.commands = Some(server);
        process.connection += 1;
        let connection = process.connection;
        process.link.is_asked_over(connection);
    }

    pub(super) fn subscribe(&self, world: &mut World, id: usize, server: usize) {
        let process = &mut world.processes[id];
        (process.subscription, process.inbox) = (Some(server), None);
        let _ = process.link.is_subscribed();
    }

    /// The server refuses a write: it is a replica.
    pub(super) fn is_refused(&self, world: &mut World, id: usize) {
        let process = &mut world.processes[id];
        process.link.has_failed();
        process.commands = None;
    }

    pub(super) fn close_connections(&self, world: &mut World, server: usize) {
        for process in &mut world.processes {
            if process.commands == Some(server) {
                process.commands = None;
            }
            if process.subscription == Some(server) {
                (process.subscription, process.inbox) = (None, None);
            }
        }
    }

    pub(super) fn replicate(&self, world: &mut World) {
        if world.is_linked {
            world.servers[1].data = world.servers[0].data;
        } else if world.is_demoted {
            world.servers[0].data = world.servers[1].data;
        }
    }

    pub(super) fn current(&self, world: &World) -> usize {
        usize::from(world.is_promoted)
    }

    pub(super) fn items(&self) -> Vec<LogItem> {
        match self.scope.what {
            What::Tag => vec![LogItem::Tag(tag())],
            What::Key => items_of_keys(keys()),
        }
    }

    /// Runs `announce.lua` at a server. Returns its reply.
    pub(super) fn announce(
        &self,
        world: &mut World,
        (id, server): (usize, usize),
        from: Option<Stamp>,
        told: Option<u8>,
    ) -> (WorldLog, LogReply) {
        let WorldServer { data, id: server_id, .. } = &mut world.servers[server];
        let mut log = data.log;
        let is_rolled_back =
            from.is_some_and(|it| it.epoch.get() == log.epoch && it.position > log.last);
        if log.epoch == 0 || log.server != *server_id || is_rolled_back {
            world.epochs += 1;
            log = WorldLog { epoch: world.epochs, server: *server_id, ..WorldLog::default() };
        }
        let (before, previous) = (log, log.last);
        if let Some(value) = told {
            log.last += 1;
            log.item = log.last;
            data.told = data.told.max(value);
            for (other, process) in world.processes.iter_mut().enumerate() {
                if other != id && process.subscription == Some(server) {
                    process.inbox = Some((log.epoch, previous, value));
                }
            }
        }
        world.servers[server].data.log = log;
        let mut reply = self.reply(&before, from);
        reply.header = header(&log);
        (log, reply)
    }

    pub(super) fn reply(&self, log: &WorldLog, from: Option<Stamp>) -> LogReply {
        let is_missed =
            from.is_some_and(|it| it.epoch.get() == log.epoch && it.position < log.item);
        let missed = self.items().into_iter().filter(|_| is_missed).map(|item| (log.item, item));
        LogReply {
            header: header(log),
            previous: log.last,
            missed: missed.collect(),
            complete_to: log.last,
        }
    }

    pub(super) fn is_answered(
        &self,
        world: &mut World,
        id: usize,
        asked: &Asked,
        reply: &LogReply,
        own: OwnItems<'_>,
    ) -> bool {
        let process = &mut world.processes[id];
        let effects = process.link.is_answered(asked, reply, own, NOW);
        // The log was asked before: no key is marked in this model.
        process.link.is_told_of_marked_keys(&reply.header, 0);
        if effects.drops_copies || !effects.items.is_empty() {
            process.ends();
        }
        effects.is_complete
    }

    /// Reads the log, or has the server check it.
    pub(super) fn beat(&self, world: &mut World, id: usize, is_late: bool) {
        let Some(server) = world.processes[id].commands else { return };
        let mut asked = world.processes[id].link.asks(NOW);
        let mut log = world.servers[server].data.log;
        if asked.verifies || log.epoch == 0 {
            if !world.servers[server].is_primary {
                return self.is_refused(world, id);
            }
            asked = asked.verifying();
            log = self.announce(world, (id, server), asked.stamp, None).0;
        }
        let told = world.servers[server].data.told;
        let beat = WorldBeat { asked, log, told, is_of_current: server == self.current(world) };
        if is_late {
            world.processes[id].beat = Some(beat);
        } else if !self.take_beat(world, id, beat) && asked.verifies {
            // Once more, as the driver does.
            let asked = world.processes[id].link.asks(NOW);
            self.take_beat(world, id, WorldBeat { asked, ..beat });
        }
    }

    pub(super) fn take_beat(&self, world: &mut World, id: usize, beat: WorldBeat) -> bool {
        let reply = self.reply(&beat.log, beat.asked.stamp);
        let is_complete = self.is_answered(world, id, &beat.asked, &reply, OwnItems::default());
        let process = &mut world.processes[id];
        if beat.told > 0 && process.link.epoch().map(Epoch::get) == Some(beat.log.epoch) {
            process.knows = process.knows.max(beat.told);
        }
        if is_complete {
            if process.link.is_away && process.link.is_back().drops_copies {
                process.ends();
            }
            if beat.is_of_current {
                process.floor = process.floor.max(beat.told);
            }
        }
        is_complete
    }

    pub(super) fn begin_write(&self, world: &mut World, id: usize) {
        world.writes += 1;
        world.database += 1;
        let (value, process) = (world.database, &mut world.processes[id]);
        match self.scope.what {
            What::Tag => process.link.invalidates_tags(&[tag()]),
            What::Key => process.link.invalidates_keys(keys()),
        }
        process.ends();
        process.knows = value;
        process.writer = WorldWriter::Begun { value, asked: process.link.asks(NOW) };
    }

    /// The call of a write returns. What was not told is in the journal.
    pub(super) fn return_write(&self, world: &mut World, id: usize, value: u8, is_queued: bool) {
        let process = &mut world.processes[id];
        if is_queued {
            match self.scope.what {
                What::Tag => process.link.journal.note_tags(&[tag()]),
                What::Key => process.link.journal.note_keys(keys()),
            }
        }
        (process.writer, process.returned) = (WorldWriter::Idle, process.returned.max(value));
        if !is_queued {
            world.done = world.done.max(value);
        }
    }

    pub(super) fn announce_write(&self, world: &mut World, id: usize, value: u8, asked: Asked) {
        let Some(server) = world.processes[id].commands else { return };
        let is_away = world.processes[id].link.is_away;
        if is_away || !world.servers[server].is_primary {
            if !is_away {
                self.is_refused(world, id);
            }
            return self.return_write(world, id, value, true);
        }
        let is_of_key = self.scope.what == What::Key;
        if is_of_key && !world.processes[id].link.is_over_one_connection(&asked) {
            return self.return_write(world, id, value, true);
        }
        let removed = match world.processes[id].writer {
            WorldWriter::Removed { version, .. } => Some(version),
            _ => None,
        };
        self.announce_items(world, id, server, (value, removed));
        self.return_write(world, id, value, false);
    }

    pub(super) fn announce_items(
        &self,
        world: &mut World,
        id: usize,
        server: usize,
        (value, removed): (u8, Option<u64>),
    ) {
        let items = self.items();
        let asked = world.processes[id].link.asks(NOW).verifying();
        let (_, reply) = self.announce(world, (id, server), asked.stamp, Some(value));
        let ended = removed
            .into_iter()
            .flat_map(|removals| keys().iter().map(move |key| (key.clone(), version(removals))));
        let ended: Vec<_> = ended.collect();
        let own = OwnItems { items: &items, ended: &ended };
        self.is_answered(world, id, &asked, &reply, own);
    }

    /// Removes the key at a server. Returns how often that was done before and now.
    pub(super) fn remove(&self, world: &mut World, server: usize) -> u64 {
        let data = &mut world.servers[server].data;
        (data.slot, data.right) = (None, 0);
        world.removals += 1;
        world.removals
    }

    pub(super) fn tell_journal(&self, world: &mut World, id: usize) {
        let Some(server) = world.processes[id].commands else { return };
        if !world.servers[server].is_primary {
            return self.is_refused(world, id);
        }
        while let Some(work) = world.processes[id].link.journal.next(true, |_| true) {
            let removed = matches!(work, JournalWork::Keys(_)).then(|| self.remove(world, server));
            let value = world.processes[id].knows;
            self.announce_items(world, id, server, (value, removed));
            world.processes[id].link.journal.done(&work);
        }
    }

    pub(super) fn hear(&self, world: &mut World, id: usize) {
        let process = &mut world.processes[id];
        let Some((epoch, previous, value)) = process.inbox.take() else { return };
        let epoch = Epoch::new(epoch).expect("epochs count from 1");
        let update = LogUpdate { epoch, previous, items: self.items() };
        let effects = process.link.is_told(&update, NOW);
        if !effects.items.is_empty() {
            process.ends();
        }
        process.knows = process.knows.max(value);
    }

    pub(super) fn tags(&self) -> Vec<Tag> {
        Some(tag()).filter(|_| self.scope.what == What::Tag).into_iter().collect()
    }

    pub(super) fn liveness(&self, world: &World, id: usize, entry: &WorldEntry) -> Liveness {
        let (key, tags, stamp) = (&key(), &self.tags(), entry.stamp);
        let version = Some(version(entry.version));
        world.processes[id].link.judge(JudgedEntry { key, tags, stamp, version }, NOW)
    }

    /// Judges what was read, with a look at the log where only that knows.
    pub(super) fn judge(&self, world: &mut World, id: usize) {
        let WorldReader::Got { entry, is_void } = world.processes[id].reader else { return };
        let is_alive = match self.liveness(world, id, &entry) {
            Liveness::Alive | Liveness::Stale(_) => true,
            Liveness::Dead | Liveness::Behind => false,
            Liveness::Unknown => self.is_alive_by_log(world, id, &entry),
        };
        let process = &mut world.processes[id];
        process.reader = if is_alive { WorldReader::Idle } else { WorldReader::Missed };
        if is_alive && !is_void {
            process.copy = Some(entry.value);
        }
    }

    pub(super) fn is_alive_by_log(&self, world: &mut World, id: usize, entry: &WorldEntry) -> bool {
        let process = &mut world.processes[id];
        let (Some(server), Some(stamp)) = (process.commands, entry.stamp) else { return false };
        if process.link.is_away || process.link.is_in_question(NOW) {
            return false;
        }
        let (log, asked) = (world.servers[server].data.log, process.link.asks(NOW));
        if log.epoch == 0 {
            return false;
        }
        if is_rolled_back(&header(&log), asked.stamp) {
            let _ = process.link.has_lost_items();
            return false;
        }
        let said = LogPositions { header: header(&log), positions: vec![log.item, 0] };
        judge_by(&said, 1, stamp) == Liveness::Alive
    }

    pub(super) fn fill(&self, world: &mut World, id: usize) {
        let WorldReader::Computed { value, stamp, version, is_void } = world.processes[id].reader
        else {
            return;
        };
        let process = &mut world.processes[id];
        process.reader = WorldReader::Idle;
        if !is_void {
            process.copy = Some(value);
        }
        let Some(server) = process.commands else { return };
        let is_barred = process.link.journal.concerns(&key())
            || process.link.journal.has_any_of(&self.tags())
            || !process.link.is_of_this_epoch(stamp)
            || process.link.is_away;
        let WorldServer { data, is_primary, .. } = &mut world.servers[server];
        if !is_barred && *is_primary && data.right == id + 1 {
            data.slot = Some(WorldEntry { value, stamp, version });
            data.right = 0;
        }
    }

    /// Returns what is broken in a state.
    pub(super) fn violation(&self, world: &World) -> Option<&'static str> {
        for process in world.processes.iter().filter(|it| it.life == Life::Runs) {
            let Some(copy) = process.serves() else { continue };
            if copy < process.returned {
                return Some("a process serves an older value after its own invalidation");
            }
            if !process.link.is_away && copy < process.floor {
                return Some("a process serves an older value after a heartbeat");
            }
        }
        self.at_rest(world)
    }

    /// No fault any more: all reach the current primary, tell their journals and have heartbeats.
    /// Then no process holds an older value, or takes one over.
    pub(super) fn at_rest(&self, world: &World) -> Option<&'static str> {
        let mut world = world.clone();
        world.is_linked = false;
        if world.is_promoted && !world.is_demoted {
            self.demote(&mut world, true);
        }
        self.replicate(&mut world);
        let current = self.current(&world);
        for round in 0..3 {
            for id in 0..world.processes.len() {
                if world.processes[id].life == Life::Runs {
                    self.rest(&mut world, id, current, round == 0);
                    self.replicate(&mut world);
                }
            }
        }
        for id in 0..world.processes.len() {
            if world.processes[id].life == Life::Runs {
                world.processes[id].inbox = None;
                self.beat(&mut world, id, false);
                self.beat(&mut world, id, false);
            }
        }
        self.older_at_rest(&mut world, current)
    }

    pub(super) fn rest(&self, world: &mut World, id: usize, current: usize, is_first: bool) {
        if let Some(beat) = world.processes[id].beat.take() {
            self.take_beat(world, id, beat);
        }
        if world.processes[id].commands != Some(current) {
            self.connect(world, id, current);
        }
        if world.processes[id].subscription != Some(current) {
            self.subscribe(world, id, current);
        }
        if is_first {
            world.processes[id].link.has_failed();
        }
        self.beat(world, id, false);
        if let WorldWriter::Begun { value, .. } | WorldWriter::Removed { value, .. } =
            world.processes[id].writer
        {
            self.return_write(world, id, value, true);
        }
        if world.processes[id].link.is_away {
            let _ = world.processes[id].link.is_back();
        }
        self.tell_again(world, id);
        self.tell_journal(world, id);
        match world.processes[id].reader {
            WorldReader::Got { .. } => self.judge(world, id),
            WorldReader::Granted { stamp, version, is_void } => {
                let value = world.database;
                world.processes[id].reader =
                    WorldReader::Computed { value, stamp, version, is_void };
                self.fill(world, id);
            }
            WorldReader::Computed { .. } => self.fill(world, id),
            _ => world.processes[id].reader = WorldReader::Idle,
        }
    }

    pub(super) fn tell_again(&self, world: &mut World, id: usize) {
        let process = &mut world.processes[id];
        if !process.link.tells_again(Tick::MAX).items.is_empty() {
            process.ends();
        }
    }

    pub(super) fn older_at_rest(&self, world: &mut World, current: usize) -> Option<&'static str> {
        let data = world.servers[current].data;
        let lives = |it: &&Shared<WorldProcess>| it.life == Life::Runs;
        let returned = world.processes.iter().filter(lives).map(|it| it.returned).max();
        let mut newest = data.told.max(returned.unwrap_or(0));
        if self.scope.kills > 0 {
            newest = newest.max(world.done);
        }
        if world.processes.iter().filter(lives).any(|it| it.copy.is_some_and(|it| it < newest)) {
            return Some("for ever: a process keeps an older value at rest");
        }
        let entry = data.slot.filter(|entry| entry.value < newest)?;
        for id in 0..world.processes.len() {
            if world.processes[id].life == Life::Runs {
                world.processes[id].reader = WorldReader::Got { entry, is_void: false };
                self.judge(world, id);
                if world.processes[id].copy.is_some_and(|copy| copy < newest) {
                    return Some("for ever: a process takes an older value over at rest");
                }
            }
        }
        // A process that starts has the log checked: one of another server begins again.
        let starts = world.processes.len();
        world.processes.push(self.process(Life::Runs));
        self.start(world, starts, current);
        world.processes[starts].reader = WorldReader::Got { entry, is_void: false };
        self.judge(world, starts);
        let copy = world.processes[starts].copy;
        copy.map(|_| "for ever: a new process takes an older value over at rest")
    }

    pub(super) fn demote(&self, world: &mut World, closes: bool) {
        world.is_demoted = true;
        world.servers[0].is_primary = false;
        if closes {
            self.close_connections(world, 0);
        }
    }
}

/// Versions count from 1.
fn version(removals: u64) -> Version {
    Version::new(removals + 1).expect("not that many")
}

fn stamp(log: &WorldLog) -> Option<Stamp> {
    Epoch::new(log.epoch).map(|epoch| Stamp::new(epoch, log.last))
}

fn header(log: &WorldLog) -> LogHeader {
    LogHeader {
        epoch: Epoch::new(log.epoch).expect("epochs count from 1"),
        server: log.server,
        last: log.last,
        everything: 0,
        everything_stale: 0,
        dropped: 0,
    }
}
