//! One read that a store has begun: where its bytes go, how it tells that it has ended, and how
//! long it took.

use std::fmt;
use std::io;
use std::sync::Arc;

use umemcg_arena::{Arena, Segment};
use umemcg_base::contained;
use umemcg_base::sync::Instant;

use crate::read_pace::ReadPace;

/// Takes the result of a read: how many bytes were delivered, or why it failed.
pub(crate) type ReadEnd = Box<dyn FnOnce(io::Result<usize>) + Send>;

/// A read that [`BackingStore::begin_read`](crate::BackingStore::begin_read) has begun. The store
/// owns it until the read ends, on whatever threads it likes. It keeps the pages, their file and
/// the engine alive.
///
/// Bytes go straight into the pages: [`deliver`](Self::deliver) them in order, in pieces of any
/// size, and [`finish`](Self::finish) the read. One that is dropped unfinished has failed. Neither
/// call waits for memory or for I/O. The last reference to the store may be dropped by either.
pub struct StoreRead {
    arena: Arc<Arena>,
    segments: Vec<Segment>,
    offset: u64,
    len: usize,
    nr_delivered: usize,
    /// Where the next byte goes: a segment, and the bytes of it that are there.
    at: (usize, usize),
    /// `None` once the read has ended.
    end: Option<ReadEnd>,
    begun: Instant,
    /// When the first bytes came.
    first: Option<Instant>,
    pace: Arc<ReadPace>,
}

impl StoreRead {
    pub(crate) fn new(
        (arena, pace): (&Arc<Arena>, &Arc<ReadPace>),
        segments: Vec<Segment>,
        offset: u64,
        end: ReadEnd,
    ) -> Self {
        Self {
            arena: Arc::clone(arena),
            len: segments.iter().map(|segment| usize::from(segment.len)).sum(),
            segments,
            offset,
            nr_delivered: 0,
            at: (0, 0),
            end: Some(end),
            begun: Instant::now(),
            first: None,
            pace: Arc::clone(pace),
        }
    }

    /// Returns the first byte that is wanted.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns how many bytes are wanted. Fewer may be delivered only where the file ends.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no byte is wanted. It never is so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bytes have been delivered.
    pub fn nr_delivered(&self) -> usize {
        self.nr_delivered
    }

    /// Delivers the next bytes. What exceeds the wanted length is ignored.
    pub fn deliver(&mut self, bytes: &[u8]) {
        self.first.get_or_insert_with(Instant::now);
        let mut bytes = &bytes[..bytes.len().min(self.len - self.nr_delivered)];
        self.nr_delivered += bytes.len();
        while !bytes.is_empty() {
            let (segment, filled) = (&self.segments[self.at.0], self.at.1);
            let (here, rest) = bytes.split_at(bytes.len().min(usize::from(segment.len) - filled));
            self.arena.copy_in(segment.frame, usize::from(segment.offset) + filled, here);
            bytes = rest;
            let is_full = filled + here.len() == usize::from(segment.len);
            self.at = if is_full { (self.at.0 + 1, 0) } else { (self.at.0, filled + here.len()) };
        }
    }

    /// Forgets what has been delivered, for a store that finds it to be wrong. The bytes are to be
    /// delivered again from the first.
    pub fn restart(&mut self) {
        (self.nr_delivered, self.at, self.first) = (0, (0, 0), None);
    }

    /// Ends the read. `Ok` with fewer bytes than wanted means the end of the file, as for
    /// [`BackingStore::read_at`](crate::BackingStore::read_at). After an error the store may be
    /// asked for a part of the range again, from within this call.
    pub fn finish(mut self, result: io::Result<()>) {
        self.ended(result);
    }

    fn ended(&mut self, result: io::Result<()>) {
        let Some(end) = self.end.take() else { return };
        let nr_delivered = self.nr_delivered;
        if let (Ok(()), Some(first)) = (&result, self.first) {
            self.pace.note(first - self.begun, first.elapsed(), nr_delivered as u64);
        }
        // The store's thread, perhaps while it unwinds, is not to be unwound by a callback.
        if let Err(panic) = contained(|| end(result.map(|()| nr_delivered))) {
            tracing::error!(%panic, "the end of a store's read panicked");
        }
    }
}

impl Drop for StoreRead {
    fn drop(&mut self) {
        self.ended(Err(io::Error::other("the store dropped a read unfinished")));
    }
}

impl fmt::Debug for StoreRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreRead")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("nr_delivered", &self.nr_delivered)
            .finish_non_exhaustive()
    }
}
