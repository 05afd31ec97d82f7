//! The bytes of a body that arrives, as chunks that are shared and not copied.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::stream::Held;

/// Shorter chunks are gathered: each for itself would take more room for its
/// handle than for its bytes.
const SMALL: usize = 512;
/// How much is gathered into one piece.
const GATHERED: usize = 4096;

/// The bytes from `start` to `end` of a body. Bytes that all readers have read can be
/// freed at the front.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: VecDeque<Piece>,
    /// What has come in small chunks since the last piece.
    gathered: Vec<u8>,
    end: u64,
}

#[derive(Clone, Debug)]
struct Piece {
    from: u64,
    bytes: Bytes,
}

impl Held<Bytes> for Pieces {
    fn start(&self) -> u64 {
        self.pieces.front().map_or_else(|| self.gathered_from(), |piece| piece.from)
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn bytes(&self) -> u64 {
        self.end
    }

    fn push(&mut self, chunk: Bytes) {
        let length = chunk.len();
        if length >= SMALL || self.gathered.len() + length > GATHERED {
            self.seal();
        }
        if length >= SMALL {
            self.pieces.push_back(Piece { from: self.end, bytes: chunk });
        } else {
            self.gathered.extend_from_slice(&chunk);
        }
        self.end += length as u64;
    }

    fn next(&self, at: u64) -> Option<(Bytes, u64)> {
        if at >= self.end {
            return None;
        }
        let piece = if let Some(skip) = at.checked_sub(self.gathered_from()) {
            Bytes::copy_from_slice(&self.gathered[skip as usize..])
        } else {
            let after = self.pieces.partition_point(|piece| piece.from <= at);
            let piece = self.pieces.get(after.checked_sub(1)?)?;
            piece.bytes.slice((at - piece.from) as usize..)
        };
        let next = at + piece.len() as u64;
        Some((piece, next))
    }

    fn free_before(&mut self, at: u64) -> Vec<Bytes> {
        if at >= self.end {
            self.gathered.clear();
        }
        let is_over = |piece: &Piece| piece.from + piece.bytes.len() as u64 <= at;
        let over = self.pieces.iter().take_while(|piece| is_over(piece)).count();
        self.pieces.drain(..over).map(|piece| piece.bytes).collect()
    }
}

impl Pieces {
    /// Returns everything there is, in order.
    pub(super) fn all(&mut self) -> Vec<Bytes> {
        self.seal();
        self.pieces.iter().map(|piece| piece.bytes.clone()).collect()
    }

    /// Holds the same bytes as one piece. Returns what it held before.
    #[must_use = "to be dropped without the lock"]
    pub(super) fn replace(&mut self, whole: Bytes) -> Vec<Bytes> {
        debug_assert_eq!(whole.len() as u64, self.end - self.start(), "the same bytes");
        self.gathered = Vec::new();
        let from = self.end - whole.len() as u64;
        let whole = VecDeque::from([Piece { from, bytes: whole }]);
        let pieces = std::mem::replace(&mut self.pieces, whole);
        pieces.into_iter().map(|piece| piece.bytes).collect()
    }

    fn gathered_from(&self) -> u64 {
        self.end - self.gathered.len() as u64
    }

    fn seal(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let from = self.gathered_from();
        let bytes = Bytes::copy_from_slice(&self.gathered);
        self.gathered.clear();
        self.pieces.push_back(Piece { from, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(buffer: &Pieces, mut offset: u64) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some((piece, _)) = buffer.next(offset) {
            assert!(!piece.is_empty());
            offset += piece.len() as u64;
            read.extend_from_slice(&piece);
        }
        read
    }

    #[test]
    fn every_offset_reads_the_rest_whatever_the_chunks_were() {
        let sizes = [1, 511, 512, 4096, 3, 4095, 600, 1, 511, 511, 511, 2];
        let mut buffer = Pieces::default();
        let mut whole = Vec::new();
        for (n, size) in sizes.iter().cycle().take(100).enumerate() {
            let chunk = vec![n as u8; *size];
            whole.extend_from_slice(&chunk);
            buffer.push(chunk.into());
        }
        for offset in (0..=whole.len()).step_by(37) {
            assert_eq!(from(&buffer, offset as u64), &whole[offset..], "{offset}");
        }
        assert_eq!(buffer.all().concat(), whole);
        drop(buffer.replace(whole.clone().into()));
        assert_eq!((buffer.start(), from(&buffer, 5)), (0, whole[5..].to_vec()));
    }

    #[test]
    fn small_chunks_are_gathered() {
        let mut buffer = Pieces::default();
        for _ in 0..1 << 16 {
            buffer.push(Bytes::from_static(b"x"));
        }
        assert!(buffer.pieces.len() <= (1 << 16) / (GATHERED - SMALL) + 1);
        assert!(buffer.gathered.capacity() <= 2 * GATHERED);
    }

    #[test]
    fn what_is_freed_is_gone_and_the_rest_stays() {
        let mut buffer = Pieces::default();
        for _ in 0..4 {
            buffer.push(vec![b'x'; 1000].into());
        }
        buffer.push(Bytes::from_static(b"small"));
        assert_eq!(buffer.free_before(1999).len(), 1);
        assert_eq!((buffer.start(), buffer.end()), (1000, 4005));
        assert_eq!(from(&buffer, 1500).len(), 2505);
        assert_eq!(buffer.free_before(4005).len(), 3);
        assert_eq!((buffer.start(), buffer.end()), (4005, 4005));
        buffer.push(Bytes::from_static(b"more"));
        assert_eq!(from(&buffer, 4005), b"more");
    }
}
