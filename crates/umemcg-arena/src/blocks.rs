//! The free frames, kept by 2 MiB block.
//!
//! A virtual machine pays 8 to 10 µs for the first touch of a page not backed by its host, and
//! returning single pages breaks huge pages. So memory goes back to the operating system by whole
//! blocks. Allocation helps blocks to become whole: it takes from the fullest block first, and in a
//! block the most recently freed frame first. A block is in one of these states:
//!
//! 1. *unbacked*: never used, or given back; the operating system holds no memory for it.
//! 2. *partial*: some frames are free; listed by their number.
//! 3. *full*: on no list.
//! 4. *idle*: all frames are free, but the block still has memory. [`Blocks::start_release`] takes
//!    the longest idle one.
//! 5. *in transit*: between 1 and 4, either way, while the operating system works on it with no
//!    lock held; on no list.
//!
//! The bitmap of a block has its free frames; a stack beside it only has their order. The stack is
//! dense, not a chain through the records: records of frames freed on another processor would be
//! fetched one after the other, each only after the previous one has arrived. All code here is safe
//! and sequential: [`Blocks`] is in a mutex.

use umemcg_base::PAGE_SIZE;

use crate::frame::FrameId;

/// log2 of [`BLOCK_FRAMES`]. Miri checks every byte, so it gets smaller blocks.
const BLOCK_SHIFT: u32 = if cfg!(miri) { 6 } else { 9 };
/// Frames in a block.
pub const BLOCK_FRAMES: usize = 1 << BLOCK_SHIFT;
/// Bytes in a block: a huge page of x86-64 and of aarch64 with 4 KiB pages.
pub const BLOCK_BYTES: usize = BLOCK_FRAMES * PAGE_SIZE;

/// This many free frames make a block nearly empty.
const NEARLY_EMPTY: usize = BLOCK_FRAMES - BLOCK_FRAMES / 8;

/// A frame in use, keeping a sparse block from being free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseFrame {
    /// The frame.
    pub frame: FrameId,
    /// At most an eighth of its block is in use.
    pub is_nearly_alone: bool,
}

/// Returns the block of a frame.
#[inline]
fn block_of(frame: FrameId) -> usize {
    frame.index() >> BLOCK_SHIFT
}

fn frame_at(block: usize, place: u32) -> FrameId {
    FrameId::from_raw((block << BLOCK_SHIFT) as u32 + place)
}

/// List of idle blocks. Lists 1 to 511 are the partial blocks with that many free frames.
const IDLE: usize = BLOCK_FRAMES;
/// List of blocks without memory.
const UNBACKED: usize = BLOCK_FRAMES + 1;
const NR_LISTS: usize = BLOCK_FRAMES + 2;
/// On no list: full, or in transit.
const UNLISTED: usize = 0;

/// No block, in links between blocks.
const NO_BLOCK: u32 = u32::MAX;
struct Block {
    /// Bit set: the frame is free.
    free: [u64; BLOCK_FRAMES / 64],
    nr_free: u32,
    /// Existing frames: fewer than [`BLOCK_FRAMES`] in the last block of some arenas.
    nr_frames: u32,
    /// Frames from here on were not handed out since the block was unbacked, and are not on the
    /// stack.
    fresh: u32,
    list: usize,
    prev: u32,
    next: u32,
}

impl Block {
    fn new(nr_frames: usize) -> Self {
        let mut free = [0; BLOCK_FRAMES / 64];
        for frame in 0..nr_frames {
            free[frame / 64] |= 1 << (frame % 64);
        }
        let nr_frames = nr_frames as u32;
        Self { free, nr_free: nr_frames, nr_frames, fresh: 0, list: UNLISTED, prev: NO_BLOCK, next: NO_BLOCK }
    }

    fn is_free(&self, place: u32) -> bool {
        self.free[place as usize / 64] & 1 << (place % 64) != 0
    }

    /// Returns the number of free frames on the stack: all except the fresh ones.
    fn nr_stacked(&self) -> usize {
        (self.nr_free - (self.nr_frames - self.fresh)) as usize
    }
}

/// The blocks of an arena.
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    /// By block, its stack: frames freed since the block got memory, the most recent one last;
    /// numbers in the block. Large and zeroed at first, so that it takes memory only for blocks in
    /// use.
    stacks: Vec<u16>,
    /// First and last block of each list.
    ends: Box<[(u32, u32); NR_LISTS]>,
    /// Bit set: the list has a block.
    filled: [u64; NR_LISTS.div_ceil(64)],
    nr_allocated: usize,
    nr_backed: usize,
    nr_idle: usize,
    nr_in_transit: usize,
}

impl Blocks {
    /// Creates the blocks of `nr_frames` frames.
    pub(crate) fn new(nr_frames: usize) -> Self {
        let nr_blocks = nr_frames.div_ceil(BLOCK_FRAMES);
        let blocks = (0..nr_blocks)
            .map(|block| Block::new((nr_frames - block * BLOCK_FRAMES).min(BLOCK_FRAMES)))
            .collect();
        let mut this = Self {
            blocks,
            stacks: vec![0; nr_blocks * BLOCK_FRAMES],
            ends: Box::new([(NO_BLOCK, NO_BLOCK); NR_LISTS]),
            filled: [0; _],
            nr_allocated: 0,
            nr_backed: 0,
            nr_idle: 0,
            nr_in_transit: 0,
        };
        // Backwards, because lists are stacks: the lowest block is used first.
        for block in (0..nr_blocks).rev() {
            this.push(block, UNBACKED);
        }
        this
    }

    pub(crate) fn nr_allocated(&self) -> usize {
        self.nr_allocated
    }

    /// Returns the number of blocks that may hold memory: all except unbacked ones.
    pub(crate) fn nr_backed(&self) -> usize {
        self.nr_backed
    }

    pub(crate) fn nr_idle(&self) -> usize {
        self.nr_idle
    }

    /// Returns whether a block is in transit; its frames will be available soon.
    pub(crate) fn is_in_transit(&self) -> bool {
        self.nr_in_transit > 0
    }

    /// Takes up to `wanted` frames and returns their number.
    pub(crate) fn take(&mut self, out: &mut Vec<FrameId>, wanted: usize) -> usize {
        let mut taken = 0;
        while taken < wanted {
            let Some(list) = self.first_filled() else { break };
            let block = self.ends[list].0 as usize;
            self.unlink(block);
            if list == UNBACKED {
                self.nr_backed += 1;
            }
            let now = (wanted - taken).min(self.blocks[block].nr_free as usize);
            self.pop_frames(block, now, out);
            taken += now;
            self.relink(block);
        }
        self.nr_allocated += taken;
        taken
    }

    /// Takes frames back. Stops at the first frame already free, and returns it as the error.
    pub(crate) fn give(&mut self, frames: impl IntoIterator<Item = FrameId>) -> Result<(), FrameId> {
        let mut unlinked = None;
        let mut result = Ok(());
        for frame in frames {
            let at = block_of(frame);
            let place = frame.raw() % BLOCK_FRAMES as u32;
            if self.blocks[at].is_free(place) {
                result = Err(frame);
                break;
            }
            // Consecutive frames of one block move it between lists once.
            if unlinked != Some(at) {
                if let Some(done) = unlinked.replace(at) {
                    self.relink(done);
                }
                self.unlink(at);
            }
            let block = &mut self.blocks[at];
            self.stacks[at * BLOCK_FRAMES + block.nr_stacked()] = place as u16;
            block.free[place as usize / 64] |= 1 << (place % 64);
            block.nr_free += 1;
            self.nr_allocated -= 1;
        }
        if let Some(done) = unlinked {
            self.relink(done);
        }
        result
    }

    /// Takes the longest idle block off the lists, unless at most `keep` are idle. The caller gives
    /// its memory back and ends it with [`finish_transit`](Self::finish_transit).
    pub(crate) fn start_release(&mut self, keep: usize) -> Option<usize> {
        (self.nr_idle > keep).then(|| self.start_transit(self.ends[IDLE].1))
    }

    /// Takes an unbacked block off the lists, unless `enough` are idle or none is unbacked. The
    /// caller touches its memory and ends it with [`finish_transit`](Self::finish_transit).
    pub(crate) fn start_backing(&mut self, enough: usize) -> Option<usize> {
        let block = self.ends[UNBACKED].0;
        if self.nr_idle >= enough || block == NO_BLOCK {
            return None;
        }
        self.nr_backed += 1;
        Some(self.start_transit(block))
    }

    fn start_transit(&mut self, block: u32) -> usize {
        self.unlink(block as usize);
        self.nr_in_transit += 1;
        block as usize
    }

    /// Puts a block in transit on its list: `backed` says whether it has memory.
    pub(crate) fn finish_transit(&mut self, block: usize, backed: bool) {
        self.nr_in_transit -= 1;
        if backed {
            self.push(block, IDLE);
        } else {
            self.nr_backed -= 1;
            // This empties its stack: all its frames are free and fresh.
            self.blocks[block].fresh = 0;
            self.push(block, UNBACKED);
        }
    }

    /// Appends up to `max` frames in use that keep whole blocks from being free. They come from the
    /// partial blocks last in [`take`](Self::take)'s order, at least half free, as far as they fit
    /// in the holes of the blocks first in that order. So all these pages would fit there, and the
    /// number of sparse blocks is bounded by the wasted space.
    pub(crate) fn sparse(&self, out: &mut Vec<SparseFrame>, max: usize) {
        let is_partial = |block: &&Block| (1..IDLE).contains(&block.list);
        let mut nr_holes: u32 = self.blocks.iter().filter(is_partial).map(|block| block.nr_free).sum();
        let (mut nr_moved, mut left) = (0, max);
        for list in (BLOCK_FRAMES / 2..IDLE).rev() {
            let mut at = self.ends[list].1;
            while at != NO_BLOCK {
                let block = &self.blocks[at as usize];
                nr_holes -= block.nr_free;
                nr_moved += block.nr_frames - block.nr_free;
                if nr_moved > nr_holes || left == 0 {
                    return;
                }
                let before = out.len();
                let used = (0..block.nr_frames).filter(|&place| !block.is_free(place));
                let is_nearly_alone = list >= NEARLY_EMPTY;
                out.extend(
                    used.take(left)
                        .map(|place| SparseFrame { frame: frame_at(at as usize, place), is_nearly_alone }),
                );
                left -= out.len() - before;
                at = block.prev;
            }
        }
    }

    /// Takes `nr` frames of an unlinked block with at least that many: the most recently freed
    /// first, then fresh ones. They are returned in falling order: contiguous frames are worth more
    /// than the order of frees.
    fn pop_frames(&mut self, at: usize, nr: usize, out: &mut Vec<FrameId>) {
        let block = &mut self.blocks[at];
        let nr_stacked = block.nr_stacked();
        let nr_popped = nr.min(nr_stacked);
        let stack = &self.stacks[at * BLOCK_FRAMES..][nr_stacked - nr_popped..nr_stacked];
        let fresh = block.fresh..block.fresh + (nr - nr_popped) as u32;
        block.fresh = fresh.end;
        block.nr_free -= nr as u32;
        let mut taken = [0u64; BLOCK_FRAMES / 64];
        for place in stack.iter().map(|&place| u32::from(place)).chain(fresh) {
            taken[place as usize / 64] |= 1 << (place % 64);
        }
        for (word, mut bits) in taken.into_iter().enumerate().rev() {
            assert!(bits & !block.free[word] == 0, "the free frames of block {at} are corrupt");
            block.free[word] &= !bits;
            while bits != 0 {
                let bit = bits.ilog2();
                bits &= !(1 << bit);
                out.push(frame_at(at, word as u32 * 64 + bit));
            }
        }
    }

    /// Puts an unlinked block on the list for its number of free frames.
    fn relink(&mut self, at: usize) {
        let block = &self.blocks[at];
        if block.nr_free == block.nr_frames {
            self.push(at, IDLE);
        } else if block.nr_free > 0 {
            self.push(at, block.nr_free as usize);
        }
    }

    /// Returns the first list with a block: the fullest partial blocks, then idle ones, then
    /// unbacked ones.
    fn first_filled(&self) -> Option<usize> {
        self.filled
            .iter()
            .position(|&word| word != 0)
            .map(|word| word * 64 + self.filled[word].trailing_zeros() as usize)
    }

    fn push(&mut self, at: usize, list: usize) {
        let head = self.ends[list].0;
        let block = &mut self.blocks[at];
        debug_assert!(block.list == UNLISTED);
        (block.list, block.prev, block.next) = (list, NO_BLOCK, head);
        if head == NO_BLOCK {
            self.ends[list].1 = at as u32;
            self.filled[list / 64] |= 1 << (list % 64);
        } else {
            self.blocks[head as usize].prev = at as u32;
        }
        self.ends[list].0 = at as u32;
        self.nr_idle += usize::from(list == IDLE);
    }

    /// Takes a block off its list, if it is on one.
    fn unlink(&mut self, at: usize) {
        let block = &mut self.blocks[at];
        let (list, prev, next) = (block.list, block.prev, block.next);
        if list == UNLISTED {
            return;
        }
        block.list = UNLISTED;
        match prev {
            NO_BLOCK => self.ends[list].0 = next,
            _ => self.blocks[prev as usize].next = next,
        }
        match next {
            NO_BLOCK => self.ends[list].1 = prev,
            _ => self.blocks[next as usize].prev = prev,
        }
        if self.ends[list].0 == NO_BLOCK {
            self.filled[list / 64] &= !(1 << (list % 64));
        }
        self.nr_idle -= usize::from(list == IDLE);
    }
}
