//! The arena: allocates and frees frames, and provides their records and copies in and out of their
//! contents.
//!
//! A caller charges a frame before it allocates it. The root group's limit is the arena's capacity,
//! so an allocation backed by a charge always finds a frame.
//!
//! Single frames are taken and given back through per-thread [batches](umemcg_base::batches). The
//! frames in batches count as free, and an allocation without any other frame takes from the
//! batches of all threads.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use umemcg_base::{
    BATCH_LEN_MAX, Batches, LockedBatch, PAGE_SHIFT, PAGE_SIZE, REFILL_LEN, Rank, RankedMutex,
};

use crate::blocks::{BLOCK_BYTES, BLOCK_FRAMES, Blocks, SparseFrame};
use crate::bytes;
use crate::frame::{FrameFlags, FrameId, FrameRecord};
use crate::mapping::{Hint, Mapping};
use crate::stable_table::StableTable;

/// Most frames taken or given back at a time through a batch; larger runs bypass it, so that they
/// stay contiguous.
const BATCHED_FRAMES_MAX: usize = 8;
/// All batches hold at most this part of the frames; an arena too small for that has none.
const BATCHES_SHARE: usize = 64;

/// Page frames over one reservation of address space.
pub struct Arena {
    /// (C) The contents: `nr_frames` pages, rounded up to a whole block.
    contents: Mapping,
    /// (C) One record per frame; the records are atomic.
    records: StableTable<FrameRecord>,
    free_frames: FreeFrames,
}

/// The free frames, on cache lines of their own.
#[repr(align(128))]
struct FreeFrames {
    /// Free frames in batches of threads. Locked before `blocks`; counted there as allocated.
    batches: Option<Batches<FrameId>>,
    blocks: RankedMutex<Blocks>,
    /// Held while a block is in transit; taken before `blocks`.
    transit: RankedMutex<()>,
    /// (A) Copies of the counts in `blocks`, stored under its lock, so that statistics take no
    /// lock.
    nr_allocated: AtomicUsize,
    nr_backed: AtomicUsize,
}

impl FreeFrames {
    /// Returns the number of free frames in batches.
    fn nr_batched(&self) -> usize {
        self.batches.as_ref().map_or(0, Batches::len)
    }

    /// Takes frames out of the calling thread's batch, refilling it when it has too few. Returns
    /// the number of frames.
    fn take_batched(&self, out: &mut Vec<FrameId>, wanted: usize) -> usize {
        let Some(batches) = self.batches.as_ref().filter(|_| wanted <= BATCHED_FRAMES_MAX) else { return 0 };
        let mut own = batches.lock_own();
        if own.items.len() < wanted {
            let mut blocks = self.blocks.lock();
            let nr_missing = wanted + REFILL_LEN - own.items.len();
            blocks.take(&mut own.items, nr_missing);
            self.note_counts(&blocks);
        }
        let at = own.items.len().saturating_sub(wanted);
        let nr_before = out.len();
        out.extend(own.items.drain(at..));
        out.len() - nr_before
    }

    /// Takes frames out of blocks; with `emptied`, the frames of all batches go back to their
    /// blocks first. Returns the number of frames, and whether more will be available soon, because
    /// a block is in transit.
    fn take(&self, out: &mut Vec<FrameId>, wanted: usize, emptied: bool) -> (usize, bool) {
        let batches = if emptied { self.lock_batches() } else { Vec::new() };
        let mut blocks = self.blocks.lock();
        // Unlocked after the frames are taken, so no frame is missed in between.
        let _batches = give_back(batches, &mut blocks);
        let taken = blocks.take(out, wanted);
        self.note_counts(&blocks);
        (taken, blocks.is_in_transit())
    }

    /// Gives the frames of all batches back to their blocks.
    fn empty_batches(&self) {
        let batches = self.lock_batches();
        if !batches.is_empty() {
            let mut blocks = self.blocks.lock();
            drop(give_back(batches, &mut blocks));
            self.note_counts(&blocks);
        }
    }

    fn lock_batches(&self) -> Vec<LockedBatch<'_, FrameId>> {
        self.batches.as_ref().map_or_else(Vec::new, Batches::lock_all)
    }

    /// Takes frames back: a few into the calling thread's batch. An overfull batch returns its
    /// oldest frames to their blocks. The error names a frame already free.
    fn give(&self, frames: &[FrameId]) -> Result<(), FrameId> {
        let Some(batches) = self.batches.as_ref().filter(|_| frames.len() <= BATCHED_FRAMES_MAX) else {
            let mut blocks = self.blocks.lock();
            let given = blocks.give(frames.iter().copied());
            self.note_counts(&blocks);
            return given;
        };
        let mut own = batches.lock_own();
        if let Some(&free) = frames.iter().find(|frame| own.items.contains(frame)) {
            return Err(free);
        }
        if own.items.len() + frames.len() <= BATCH_LEN_MAX {
            own.items.extend(frames);
            return Ok(());
        }
        let nr_kept = BATCH_LEN_MAX / 2;
        let nr_given = own.items.len().saturating_sub(nr_kept);
        let mut blocks = self.blocks.lock();
        let given = blocks.give(own.items.drain(..nr_given));
        self.note_counts(&blocks);
        own.items.extend(frames);
        given
    }

    fn note_counts(&self, blocks: &Blocks) {
        self.nr_allocated.store(blocks.nr_allocated(), Ordering::Relaxed);
        self.nr_backed.store(blocks.nr_backed(), Ordering::Relaxed);
    }
}

impl Arena {
    /// Reserves address space for `capacity_bytes`, rounded down to whole frames. Memory is taken
    /// when frames are touched.
    ///
    /// # Errors
    /// `InvalidInput` for no frame, or more frames than numbers (16 TiB); else the operating
    /// system's error for the reservation.
    pub fn new(capacity_bytes: u64) -> io::Result<Arc<Self>> {
        let nr_frames = usize::try_from(capacity_bytes >> PAGE_SHIFT).unwrap_or(usize::MAX);
        if nr_frames == 0 || nr_frames >= FrameId::NONE.index() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::with_frames(nr_frames)
    }

    /// Creates an arena without frames, for an engine without pages. Every allocation returns
    /// nothing.
    ///
    /// # Errors
    /// The operating system's error for a reservation of one block.
    pub fn without_frames() -> io::Result<Arc<Self>> {
        Self::with_frames(0)
    }

    fn with_frames(nr_frames: usize) -> io::Result<Arc<Self>> {
        let contents = Mapping::new(nr_frames * PAGE_SIZE)?;
        contents.hint(Hint::HugePages);
        contents.hint(Hint::NotInCoreFiles);
        let records = StableTable::new(nr_frames)?;
        // Frames are handed out densely, so their records are dense too.
        #[cfg(not(loom))]
        records.mapping().hint(Hint::HugePages);
        let batches = Some(Batches::new()).filter(|batches| batches.capacity() * BATCHES_SHARE <= nr_frames);
        let free_frames = FreeFrames {
            batches,
            blocks: RankedMutex::new(Rank::FreeFrames, Blocks::new(nr_frames)),
            transit: RankedMutex::new(Rank::FreeFrames, ()),
            nr_allocated: AtomicUsize::new(0),
            nr_backed: AtomicUsize::new(0),
        };
        Ok(Arc::new(Self { contents, records, free_frames }))
    }

    /// Returns the number of frames, free or not.
    pub fn nr_frames(&self) -> usize {
        self.records.len()
    }

    fn nr_blocks(&self) -> usize {
        self.nr_frames().div_ceil(BLOCK_FRAMES)
    }

    /// Returns the number of frames in use.
    pub fn nr_allocated(&self) -> usize {
        let free_frames = &self.free_frames;
        free_frames.nr_allocated.load(Ordering::Relaxed).saturating_sub(free_frames.nr_batched())
    }

    /// Returns the bytes of the backed blocks: an upper bound of the resident memory of the
    /// contents. The records add 64 bytes for each frame ever used.
    pub fn resident_bytes(&self) -> u64 {
        self.free_frames.nr_backed.load(Ordering::Relaxed) as u64 * BLOCK_BYTES as u64
    }

    /// Appends up to `n` frames to `out`, and returns their number. Frames of one block come
    /// together, the highest first. The frames are frozen and without flags, except for late hints.
    /// The other fields of the records and the contents are left from before. May wait for the
    /// operating system when the last free block is just being given back or
    /// [prepared](Self::prepare).
    pub fn alloc(&self, out: &mut Vec<FrameId>, n: usize) -> usize {
        out.reserve(n.min(self.nr_frames()));
        let start = out.len();
        self.take_frames(out, n);
        for &frame in &out[start..] {
            // The allocation does not touch the records, because another processor may have freed
            // the frames. The caller does, and may prefetch the records first.
            debug_assert!(self.record(frame).is_frozen());
        }
        out.len() - start
    }

    fn take_frames(&self, out: &mut Vec<FrameId>, mut missing: usize) {
        let free_frames = &self.free_frames;
        missing -= free_frames.take_batched(out, missing);
        while missing > 0 {
            let (taken, mut is_in_transit) = free_frames.take(out, missing, false);
            missing -= taken;
            if missing > 0 && free_frames.batches.is_some() {
                let taken;
                (taken, is_in_transit) = free_frames.take(out, missing, true);
                missing -= taken;
            }
            if missing == 0 || !is_in_transit {
                return;
            }
            // A block is in transit; it is available once this lock is free. Each turn waits for
            // another block.
            drop(free_frames.transit.lock());
        }
    }

    /// Gives frames back.
    ///
    /// # Panics
    /// When one of them is not frozen, or is already free. A double free of a few frames at a time
    /// may be detected only later: when a thread's batch goes back to its blocks.
    pub fn free(&self, frames: &[FrameId]) {
        for &frame in frames {
            let record = self.record(frame);
            assert!(record.is_frozen(), "{frame:?} freed while it can be pinned");
            record.start_with(FrameFlags::NONE);
        }
        if let Err(frame) = self.free_frames.give(frames) {
            panic!("{frame:?} freed twice");
        }
    }

    /// Returns the record of a frame.
    ///
    /// # Panics
    /// When there is no such frame.
    #[inline]
    #[doc(hidden)]
    pub fn record(&self, frame: FrameId) -> &FrameRecord {
        self.records.get(frame.index())
    }

    /// Returns a frame with its record, if the number is valid: for possibly outdated or guessed
    /// numbers.
    #[inline]
    #[doc(hidden)]
    pub fn find(&self, frame: FrameId) -> Option<Frame<'_>> {
        let record = self.records.as_slice().get(frame.index())?;
        // SAFETY: [5] There are as many frames as records.
        let contents = unsafe { self.contents.base().add(frame.index() * PAGE_SIZE) };
        Some(Frame { record, contents })
    }

    /// Copies bytes of a frame out. After concurrent writes the bytes are a mixture.
    ///
    /// # Panics
    /// When the range leaves the frame.
    #[inline]
    pub fn copy_out(&self, frame: FrameId, offset: usize, dst: &mut [u8]) {
        let src = self.address(frame, offset, dst.len());
        // SAFETY: [5] The source is in a frame, which is touched by relaxed copies and system calls
        // only; the destination is borrowed exclusively, so it is no frame and no other thread
        // touches it.
        unsafe { bytes::copy(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
    }

    /// Copies bytes into a frame. Other threads may read or write them concurrently.
    ///
    /// # Panics
    /// When the range leaves the frame.
    #[inline]
    pub fn copy_in(&self, frame: FrameId, offset: usize, src: &[u8]) {
        let dst = self.address(frame, offset, src.len());
        // SAFETY: [5] The destination is in a frame; the source is borrowed, so it is no frame and
        // no thread writes it.
        unsafe { bytes::copy_to_cold(dst.as_ptr(), src.as_ptr(), src.len()) }
    }

    /// Zeroes bytes of a frame.
    ///
    /// # Panics
    /// When the range leaves the frame.
    #[inline]
    pub fn zero(&self, frame: FrameId, offset: usize, len: usize) {
        let dst = self.address(frame, offset, len);
        // SAFETY: [5] In a frame.
        unsafe { bytes::zero(dst.as_ptr(), len) }
    }

    /// Copies a whole frame.
    ///
    /// # Panics
    /// When both are the same.
    #[inline]
    pub fn copy_frame(&self, from: FrameId, to: FrameId) {
        assert!(from != to);
        let (src, dst) = (self.address(from, 0, PAGE_SIZE), self.address(to, 0, PAGE_SIZE));
        // SAFETY: [5] Both are frames, and different ones.
        unsafe { bytes::copy_to_cold(dst.as_ptr(), src.as_ptr(), PAGE_SIZE) }
    }

    /// Loads eight bytes of a frame. After concurrent writes the bytes are a mixture.
    ///
    /// # Panics
    /// When they leave the frame.
    #[inline]
    pub fn load_u64(&self, frame: FrameId, offset: usize) -> u64 {
        let src = self.address(frame, offset, 8);
        // SAFETY: [5] In a frame.
        unsafe { bytes::load_u64(src.as_ptr()) }
    }

    /// Returns the address of a range in one frame. Only [`bytes`] and system calls may dereference
    /// it.
    ///
    /// # Panics
    /// When there is no such frame, or the range leaves it.
    #[inline]
    pub(crate) fn address(&self, frame: FrameId, offset: usize, len: usize) -> NonNull<u8> {
        let Some(frame) = self.find(frame) else { no_such_frame(frame) };
        frame.address(offset, len)
    }

    /// Gives the memory of idle blocks back to the operating system, the longest idle first, until
    /// at most `keep_free_blocks` keep theirs; returns the number of released blocks. One system
    /// call per block; allocations go on meanwhile.
    pub fn trim(&self, keep_free_blocks: usize) -> usize {
        let free_frames = &self.free_frames;
        free_frames.empty_batches();
        // Bounded by the number of blocks, however fast other threads free them.
        for nr_released in 0..self.nr_blocks() {
            let _transit = free_frames.transit.lock();
            let Some(block) = free_frames.blocks.lock_second().start_release(keep_free_blocks) else {
                return nr_released;
            };
            // SAFETY: [5] Zero is as good as any contents of frames, and all of these are free.
            let released = unsafe { self.contents.discard(bytes_of(block)) }.is_ok();
            self.finish_transit(block, !released);
            if !released {
                return nr_released; // Locked memory, say: the others would be refused too.
            }
        }
        self.nr_blocks()
    }

    /// Touches the memory of unused blocks until at least `free_blocks` are idle, or no unused one
    /// is left; returns the number of touched blocks. The first touch of a block can take
    /// milliseconds on a virtual machine: let a background worker wait for it, not a request.
    /// Allocations go on meanwhile.
    pub fn prepare(&self, free_blocks: usize) -> usize {
        let free_frames = &self.free_frames;
        for nr_prepared in 0..free_blocks.min(self.nr_blocks()) {
            let _transit = free_frames.transit.lock();
            let Some(block) = free_frames.blocks.lock_second().start_backing(free_blocks) else {
                return nr_prepared;
            };
            let backed = self.contents.populate(bytes_of(block)).is_ok();
            self.finish_transit(block, backed);
            if !backed {
                return nr_prepared; // An old kernel: blocks are touched when they are used.
            }
        }
        free_blocks.min(self.nr_blocks())
    }

    fn finish_transit(&self, block: usize, backed: bool) {
        let mut blocks = self.free_frames.blocks.lock_second();
        blocks.finish_transit(block, backed);
        self.free_frames.note_counts(&blocks);
    }

    /// Returns up to `max` frames in use that keep whole blocks from being free: the frames of the
    /// emptiest blocks, as far as they fit in holes of fuller blocks. [`alloc`](Self::alloc) fills
    /// those holes first. Empty when free space is not fragmented. A hint: the frames may be freed
    /// or reused meanwhile.
    #[doc(hidden)]
    pub fn sparse_candidates(&self, max: usize) -> Vec<SparseFrame> {
        let mut out = Vec::new();
        self.free_frames.empty_batches();
        self.free_frames.blocks.lock().sparse(&mut out, max);
        out
    }

    /// Returns the number of idle blocks with memory; [`trim`](Self::trim) could release them.
    pub fn nr_idle_blocks(&self) -> usize {
        self.free_frames.blocks.lock().nr_idle()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("nr_frames", &self.nr_frames())
            .field("nr_allocated", &self.nr_allocated())
            .field("resident_bytes", &self.resident_bytes())
            .finish_non_exhaustive()
    }
}

/// Gives the frames of batches back to their blocks. Returns the batches, still locked.
fn give_back<'b>(
    mut batches: Vec<LockedBatch<'b, FrameId>>,
    blocks: &mut Blocks,
) -> Vec<LockedBatch<'b, FrameId>> {
    for batch in &mut batches {
        if let Err(frame) = blocks.give(batch.items.drain(..)) {
            panic!("{frame:?} freed twice");
        }
    }
    batches
}

/// Returns the bytes of a block in the contents.
fn bytes_of(block: usize) -> Range<usize> {
    block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES
}

/// A valid frame: its record, and its contents for copying out.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    record: &'a FrameRecord,
    /// (C) The first byte. The whole frame is valid while the arena lives, and the record borrows
    /// from the arena.
    contents: NonNull<u8>,
}

impl<'a> Frame<'a> {
    /// Returns its record.
    #[inline]
    pub fn record(self) -> &'a FrameRecord {
        self.record
    }

    /// As [`Arena::copy_out`].
    ///
    /// # Panics
    /// When the range leaves the frame.
    #[inline]
    pub fn copy_out(self, offset: usize, dst: &mut [u8]) {
        let src = self.address(offset, dst.len());
        // SAFETY: [5] As in `Arena::copy_out`.
        unsafe { bytes::copy(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
    }

    /// As [`Arena::load_u64`].
    ///
    /// # Panics
    /// When the bytes leave the frame.
    #[inline]
    pub fn load_u64(self, offset: usize) -> u64 {
        let src = self.address(offset, 8);
        // SAFETY: [5] In a frame.
        unsafe { bytes::load_u64(src.as_ptr()) }
    }

    #[inline]
    fn address(self, offset: usize, len: usize) -> NonNull<u8> {
        if offset > PAGE_SIZE || len > PAGE_SIZE - offset {
            no_such_range(offset, len);
        }
        // SAFETY: [5] `offset ≤ PAGE_SIZE`, so this is in the mapping or just past its end.
        unsafe { self.contents.add(offset) }
    }
}

/// Panics. Out of line and by value, so that the check in front of every copy costs comparisons
/// only.
#[cold]
#[inline(never)]
fn no_such_frame(frame: FrameId) -> ! {
    panic!("no {frame:?}");
}

/// Panics, as above.
#[cold]
#[inline(never)]
fn no_such_range(offset: usize, len: usize) -> ! {
    panic!("{offset}+{len} leaves a frame");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_waits_for_a_block_in_transit() {
        let arena = Arena::new(2 * BLOCK_BYTES as u64).unwrap();
        let all = arena.nr_frames();
        let mut frames = Vec::new();
        arena.alloc(&mut frames, all);
        arena.free(&frames);
        // The first half of `trim`.
        let transit = arena.free_frames.transit.lock();
        let block = arena.free_frames.blocks.lock_second().start_release(1).unwrap();
        std::thread::scope(|scope| {
            let allocation = scope.spawn(|| arena.alloc(&mut Vec::new(), all));
            // Takes the other block, sees that this one is in transit, and waits for it.
            while arena.nr_allocated() < BLOCK_FRAMES {
                std::thread::yield_now();
            }
            // The second half.
            arena.finish_transit(block, false);
            drop(transit);
            assert_eq!(allocation.join().unwrap(), all);
        });
    }
}
