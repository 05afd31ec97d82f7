//! Keys whose entries were evicted a short while ago: by their hash, and no more.

/// How many hashes of one bucket are remembered, the newest first.
const WAYS: usize = 8;

/// No hash. A hash that is 0 is remembered as 1.
const NONE: u32 = 0;

/// As many evicted keys as the store holds entries, or up to twice as many. Within its bucket the
/// newest hash takes the place of the oldest.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    /// None, or a power of two of them.
    buckets: Vec<[u32; WAYS]>,
}

impl Ghosts {
    fn bucket(&mut self, hash: u32) -> Option<&mut [u32; WAYS]> {
        let mask = self.buckets.len().wrapping_sub(1);
        self.buckets.get_mut(hash as usize & mask)
    }

    /// Remembers a key, among `entries` that the store holds.
    pub(crate) fn put(&mut self, hash: u32, entries: usize) {
        if self.buckets.len() * WAYS < entries.max(1) {
            self.grow(entries);
        }
        if let Some(bucket) = self.bucket(hash) {
            bucket.copy_within(..WAYS - 1, 1);
            bucket[0] = hash.max(1);
        }
    }

    /// Returns whether the key was remembered, and forgets it.
    pub(crate) fn take(&mut self, hash: u32) -> bool {
        let Some(bucket) = self.bucket(hash) else { return false };
        let Some(at) = bucket.iter().position(|ghost| *ghost == hash.max(1)) else { return false };
        bucket.copy_within(at + 1.., at);
        bucket[WAYS - 1] = NONE;
        true
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn grow(&mut self, entries: usize) {
        let buckets = entries.div_ceil(WAYS).next_power_of_two();
        let before = std::mem::replace(&mut self.buckets, vec![[NONE; WAYS]; buckets]);
        // The oldest first: each goes in front of those before it.
        for hash in before.into_iter().flat_map(|bucket| bucket.into_iter().rev()) {
            if hash != NONE
                && let Some(bucket) = self.bucket(hash)
            {
                bucket.copy_within(..WAYS - 1, 1);
                bucket[0] = hash;
            }
        }
    }
}
