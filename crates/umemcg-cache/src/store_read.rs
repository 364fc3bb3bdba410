//! One read begun by a store: the destination of its bytes, the callback at its end, and its
//! duration.

use std::fmt;
use std::io;
use std::sync::Arc;

use umemcg_arena::{Arena, Segment};
use umemcg_base::contained;
use umemcg_base::sync::Instant;

use crate::read_pace::ReadPace;

/// Callback that receives the result of a read: the number of bytes delivered, or the error.
pub(crate) type ReadEnd = Box<dyn FnOnce(io::Result<usize>) + Send>;

/// A read that [`BackingStore::begin_read`](crate::BackingStore::begin_read) has begun. The store
/// owns it until the read ends, on whatever threads it likes. It keeps the pages, their file and
/// the engine alive.
///
/// Bytes go straight into the pages: [`deliver`](Self::deliver) them in order, in pieces of any
/// size, and [`finish`](Self::finish) the read. A read dropped unfinished has failed. Neither call
/// waits for memory or for I/O. The last reference to the store may be dropped by either.
pub struct StoreRead {
    arena: Arc<Arena>,
    segments: Vec<Segment>,
    offset: u64,
    len: usize,
    nr_delivered: usize,
    /// The destination of the next byte: a segment, and the number of bytes already in it.
    at: (usize, usize),
    /// `None` once the read has ended.
    end: Option<ReadEnd>,
    begun: Instant,
    /// The arrival of the first bytes.
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

    /// Returns the offset of the first requested byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of requested bytes. Fewer may be delivered only where the file ends.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no byte is requested, which is never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes delivered so far.
    pub fn nr_delivered(&self) -> usize {
        self.nr_delivered
    }

    /// Delivers the next bytes. Bytes beyond the requested length are ignored.
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

    /// Discards all delivered bytes, for a store that has found them to be wrong. The store then
    /// delivers them again from the first.
    pub fn restart(&mut self) {
        (self.nr_delivered, self.at, self.first) = (0, (0, 0), None);
    }

    /// Ends the read. `Ok` with fewer bytes than requested means the end of the file, as for
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
        // A panic of the callback must not unwind the store's thread, which may already be
        // unwinding.
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
