//! The rules of the protocol, each with a switch.

/// Pairs of rules that do the same work in the model. Leaving out the first refutes the protocol in
/// no scope. Leaving out both refutes it in a scope in which leaving out the second does not.
pub const STAND_INS: &[(&str, &str)] = &[("key_before_log", "version_marks")];

/// Rules that no scope shows to be needed, alone or with any other left out. The README says more.
pub const NOT_SHOWN: &[&str] = &["repair_names_position", "copies_keep_stamp"];

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Which rules hold.
        #[derive(Clone, Copy)]
        pub struct Rules {
            $($(#[$doc])* pub $name: bool,)*
        }

        impl Rules {
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            pub const ALL: Self = Self { $($name: true),* };

            /// The same without one of them.
            pub fn without(mut self, name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => self.$name = false,)*
                    _ => return None,
                }
                Some(self)
            }
        }
    };
}

rules! {
    /// D1. A lost log is not an empty log: a process that finds none creates an epoch. Without
    /// it nothing was ever invalidated where no log is.
    lost_log_ends_all,
    /// D2. An entry is stamped with a position. Without it, with the time of the key's server,
    /// which is one tick ahead of that of the log's server.
    positions_not_times,
    /// D4. Invalidations of keys are items of the log. Without it they are messages alone.
    keys_in_log,
    /// An entry stamped without an epoch is dead.
    absence_is_no_stamp,
    /// A new process begins at the last position of the log. Without it, at 0, as if it had
    /// followed the log from there.
    begins_at_last,
    /// The stamp is taken before the computation begins. Without it, at the fill.
    stamp_before_computation,
    /// Positions are applied before they count as applied. Without it an announcement moves its
    /// process to the position of its item, over what it has missed.
    applied_positions_only,
    /// A changed replication id makes a new epoch.
    new_epoch_after_failover,
    /// All entries of the epoch before a failover are dead. Without it a stamp (previous, s)
    /// counts as (current, min(s, m)), as the third edition says.
    old_epoch_is_dead,
    /// A connection asks for the replication id before a read over it counts.
    connection_is_checked,
    /// A process judges a roll-back from the position that it had when it sent its read, and
    /// a script decides. Without it, by itself from its position when the reply arrives.
    roll_back_judged_as_sent,
    /// A repair names the epoch and the position that were lost.
    repair_names_position,
    /// A process never returns to an epoch that it has left.
    no_return_to_left_epoch,
    /// An unknown epoch makes a process read the log. Without it the entry counts as alive.
    unknown_epoch_reads_log,
    /// A stamp older than the memory of the process makes it read the log.
    old_stamp_reads_log,
    /// What stands in the journal is neither adopted nor shared.
    journal_bars_entries,
    /// A copy keeps the stamp of its original.
    copies_keep_stamp,
    /// A copy keeps the version of its original for the comparison with version marks.
    copies_keep_version,
    /// First the slot of the key, then the log.
    key_before_log,
    /// The journal keeps an announcement that failed.
    journal_keeps_failed,
    /// A local copy carries the position at which its read was sent.
    copy_carries_sent_position,
    /// Insert, then check.
    insert_then_check,
    /// An invalidation is announced where the key's slot was empty, too.
    empty_slot_is_announced,
    /// A grant that arrives after its computation began is abandoned.
    late_grant_is_abandoned,
    /// The fill is fenced by the right to write.
    fill_is_fenced,
    /// A key item carries a version mark.
    version_marks,
    /// The mark covers the version of the right to write, and the server's clock.
    mark_covers_right,
    /// A grant is asked for with the mark as its floor.
    grant_above_mark,
    /// An entry older than a key item that the log has dropped is dead where its key's slot may
    /// have been set back.
    dropped_items_end_entries,
}
