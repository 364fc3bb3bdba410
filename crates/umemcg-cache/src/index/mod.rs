//! The index of a file: page number to frame, or to the shadow of an evicted page.
//!
//! A radix tree of 64-way nodes. The nodes live in type-stable memory, so a reader walks the tree
//! with plain loads and no lock: a node recycled under it leads to an entry that fails the usual
//! check of every reader (pin the frame, then compare its file and page number). All changes are
//! made under the file's index lock; a locked look-up is exact.
//!
//! Each node also carries masks of its slots: occupied slots, slots with shadows only, and slots
//! with dirty or unstable pages below. So write-back finds these pages without looking at clean
//! ones.

mod missing_nodes;

use std::ops::Range;
use std::sync::Arc;

use umemcg_arena::FrameId;
use umemcg_base::sync::atomic::{AtomicU64, Ordering};
use umemcg_base::{Rank, RankedMutex, RankedMutexGuard};
use umemcg_reclaim::Shadow;

use crate::frame_run::{FrameRun, NO_BASE, guess};
use crate::index_node::{
    FANOUT, FANOUT_SHIFT, LINE_WORDS, NODE_WORDS, WORD_FILE_PLACE, WORD_FIRST_PAGE, WORD_OWNER,
};
use crate::node_pool::{NodePool, NodeReserve};

/// Levels needed for 52-bit page numbers.
const HEIGHT_MAX: u32 = 9;

const TAG_MASK: u64 = 3;
const TAG_PAGE: u64 = 1;
const TAG_SHADOW: u64 = 2;
const TAG_NODE: u64 = 3;

/// The root word's height stands above its node's place.
const HEIGHT_SHIFT: u32 = 56;

const WORD_OCCUPIED: u64 = FANOUT;
const WORD_SHADOWS: u64 = FANOUT + 1;
const WORD_DIRTY: u64 = FANOUT + 2;
const WORD_UNSTABLE: u64 = FANOUT + 3;
/// The [`FrameRun`] of a leaf.
const WORD_RUN: u64 = FANOUT + 5;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Nothing known.
    Empty,
    /// A page, in this frame if the frame agrees.
    Page(FrameId),
    /// The shadow of an evicted page.
    Shadow(Shadow),
}

impl Entry {
    fn decode(word: u64) -> Self {
        match word & TAG_MASK {
            TAG_PAGE => Self::Page(FrameId::from_raw((word >> 2) as u32)),
            TAG_SHADOW => Self::Shadow(Shadow::from_raw(word)),
            _ => Self::Empty,
        }
    }
    fn frame(self) -> Option<FrameId> {
        match self {
            Self::Page(frame) => Some(frame),
            _ => None,
        }
    }
    fn encode(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Page(frame) => (u64::from(frame.raw()) << 2) | TAG_PAGE,
            Self::Shadow(shadow) => shadow.to_raw() | TAG_SHADOW,
        }
    }
}

/// Returns a node as inner entries name it: by the line of its first word, so that a look-up need
/// only shift and load; above that, for a leaf, the base of its run.
fn node_entry(node: u32, base: u32) -> u64 {
    u64::from(base) << 32 | (u64::from(node) * (NODE_WORDS / LINE_WORDS)) << 2 | TAG_NODE
}

/// Returns the node named by an inner entry.
fn node_of(word: u64) -> Option<u32> {
    (word & TAG_MASK == TAG_NODE).then_some((word as u32 >> 2) / (NODE_WORDS / LINE_WORDS) as u32)
}

/// Marks searched for by write-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Must be written.
    Dirty,
    /// Written, not yet confirmed durable.
    Unstable,
}

impl Mark {
    fn word(self) -> u64 {
        match self {
            Self::Dirty => WORD_DIRTY,
            Self::Unstable => WORD_UNSTABLE,
        }
    }
}

/// A file's index.
#[derive(Debug)]
pub struct Index {
    pool: Arc<NodePool>,
    /// The file's number.
    file: u32,
    /// 0 when empty, else height (≥ 1) from [`HEIGHT_SHIFT`] on and below it the place of the root
    /// node's first word. (index lock to write)
    root: AtomicU64,
    lock: RankedMutex<()>,
}

/// A change in progress; proves that the index lock is held.
#[derive(Debug)]
pub struct LockedIndex<'a> {
    index: &'a Index,
    _guard: RankedMutexGuard<'a, ()>,
}

impl Index {
    /// Creates an empty index of the file of that number.
    pub fn new(pool: &Arc<NodePool>, file: u32) -> Self {
        let lock = RankedMutex::new(Rank::FileIndex, ());
        Self { pool: Arc::clone(pool), file, root: AtomicU64::new(0), lock }
    }

    /// Looks a page up without a lock. The answer may be out of date: pin the page and compare its
    /// identity before use, and confirm a miss under the lock.
    #[inline]
    pub fn lookup(&self, page: u64) -> Entry {
        self.look_into(self.find(page), page)
    }

    /// Returns the leaf responsible for a page. Takes no lock: a node on the way may have been
    /// recycled, so the result may be any leaf.
    #[inline]
    pub(crate) fn find(&self, page: u64) -> Leaf {
        // Acquire here and below: pairs with the Release stores in `LockedIndex::store`.
        let root = self.root.load(Ordering::Acquire);
        let node = root & ((1 << HEIGHT_SHIFT) - 1);
        match (root >> HEIGHT_SHIFT) as u32 {
            0 => Leaf::NONE,
            // The heights of files up to 64 GiB, each with its loop rolled out: most hits are here.
            1 => self.descend(node, page, 1),
            2 => self.descend(node, page, 2),
            3 => self.descend(node, page, 3),
            4 => self.descend(node, page, 4),
            height => self.descend(node, page, height),
        }
    }

    /// Returns the leaf of a page below a node `height` levels above the pages, whose first word is
    /// at `node`.
    #[inline(always)]
    fn descend(&self, node: u64, page: u64, height: u32) -> Leaf {
        if page >> (FANOUT_SHIFT * height) != 0 {
            return Leaf::NONE;
        }
        let words = self.pool.words.words();
        let mut at = Leaf { first_word: node, base: NO_BASE };
        let mut level = height - 1;
        while level > 0 {
            let Some(word) = words.get((at.first_word + slot_of(page, level)) as usize) else {
                return Leaf::NONE;
            };
            let word = word.load(Ordering::Acquire);
            // Takes the tag off a node's entry, and leaves a line far beyond the table of any
            // other.
            let line = (word as u32 ^ TAG_NODE as u32).rotate_right(2);
            at = Leaf { first_word: u64::from(line) * LINE_WORDS, base: (word >> 32) as u32 };
            level -= 1;
        }
        at
    }

    /// Returns the entry of a page in a leaf.
    #[inline]
    pub(crate) fn look_into(&self, leaf: Leaf, page: u64) -> Entry {
        match self.pool.words.words().get((leaf.first_word + slot_of(page, 0)) as usize) {
            Some(word) => Entry::decode(word.load(Ordering::Acquire)),
            None => Entry::Empty,
        }
    }

    /// Takes the index lock.
    pub fn lock(&self) -> LockedIndex<'_> {
        LockedIndex { index: self, _guard: self.lock.lock() }
    }
}

/// A leaf found without a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf {
    /// The place of its first word, or one beyond the table.
    first_word: u64,
    /// The base of its run, as shown in its parent's entry.
    base: u32,
}

impl Leaf {
    const NONE: Self = Self { first_word: 1 << 63, base: NO_BASE };

    /// Returns the probable frame of a page of the leaf, without reading the leaf. The frame may
    /// not even exist.
    #[inline]
    pub(crate) fn guess(self, page: u64) -> FrameId {
        guess(self.base, slot_of(page, 0))
    }
}

/// The way from the root to a leaf slot.
struct Path {
    nodes: [u32; HEIGHT_MAX as usize],
    height: u32,
}

impl Path {
    /// Returns the parent of the leaf.
    fn parent(&self) -> Option<u32> {
        (self.height > 1).then(|| self.nodes[1])
    }
}

impl LockedIndex<'_> {
    fn word(&self, node: u32, word: u64) -> &AtomicU64 {
        self.index.pool.word(node, word)
    }

    fn store(&self, node: u32, word: u64, value: u64) {
        // Release: pairs with the Acquire loads in `Index::lookup`.
        self.word(node, word).store(value, Ordering::Release);
    }

    /// Changes a slot of a leaf, a child of `parent`. Returns the old entry.
    fn set_entry(&self, parent: Option<u32>, leaf: u32, page: u64, entry: Entry) -> Entry {
        let slot = slot_of(page, 0);
        let old = Entry::decode(self.word(leaf, slot).load(Ordering::Relaxed));
        let before = self.run(leaf);
        self.note_run(parent, leaf, page, (before, before.after(slot, old.frame(), entry.frame())));
        self.store(leaf, slot, entry.encode());
        old
    }

    /// Records the run of a leaf, in the leaf and in its entry in `parent`.
    fn note_run(&self, parent: Option<u32>, leaf: u32, page: u64, (before, run): (FrameRun, FrameRun)) {
        if run != before {
            self.word(leaf, WORD_RUN).store(run.encode(), Ordering::Relaxed);
        }
        if let Some(parent) = parent.filter(|_| run.shown_base() != before.shown_base()) {
            self.store(parent, slot_of(page, 1), node_entry(leaf, run.shown_base()));
        }
    }

    /// Returns the run of a leaf; of an inner node it is empty.
    fn run(&self, node: u32) -> FrameRun {
        FrameRun::decode(self.word(node, WORD_RUN).load(Ordering::Relaxed))
    }

    fn root(&self) -> (u32, u32) {
        let root = self.index.root.load(Ordering::Relaxed);
        let first_word = root & ((1 << HEIGHT_SHIFT) - 1);
        ((root >> HEIGHT_SHIFT) as u32, (first_word / NODE_WORDS) as u32)
    }

    fn set_bit(&self, node: u32, mask: u64, slot: u64, on: bool) {
        let word = self.word(node, mask);
        let old = word.load(Ordering::Relaxed);
        let new = if on { old | 1 << slot } else { old & !(1 << slot) };
        if new != old {
            word.store(new, Ordering::Relaxed);
        }
    }

    fn mask(&self, node: u32, mask: u64) -> u64 {
        self.word(node, mask).load(Ordering::Relaxed)
    }

    /// Returns the exact entry.
    pub fn get(&self, page: u64) -> Entry {
        self.index.lookup(page)
    }

    fn path(&self, page: u64) -> Option<Path> {
        let (height, root) = self.root();
        if height == 0 || (height < HEIGHT_MAX && page >> (FANOUT_SHIFT * height) != 0) {
            return None;
        }
        let mut path = Path { nodes: [0; HEIGHT_MAX as usize], height };
        let mut node = root;
        for level in (0..height).rev() {
            path.nodes[level as usize] = node;
            if level > 0 {
                let word = self.word(node, slot_of(page, level)).load(Ordering::Relaxed);
                node = node_of(word)?;
            }
        }
        Some(path)
    }

    /// Inserts adjacent pages from `pages.start` on, each with the last of `frames`, until one
    /// exists already or no frame is left. Takes new nodes from `reserve`. Before a page becomes
    /// visible, `adopt` is called with it, its frame, and the shadow in its place. Returns the page
    /// at which it stopped, or `None` if the reserve was too small: a node has left since it was
    /// counted.
    ///
    /// Does the work shared by the pages of a leaf only once.
    pub fn insert_run(
        &self,
        pages: Range<u64>,
        frames: &mut Vec<FrameId>,
        reserve: &mut NodeReserve<'_>,
        mut adopt: impl FnMut(u64, FrameId, Option<Shadow>),
    ) -> Option<u64> {
        let mut page = pages.start;
        while page < pages.end && !frames.is_empty() {
            // A leaf made here gets a page.
            let (parent, leaf) = self.leaf_for(page, reserve)?;
            let (first, before) = (page, self.run(leaf));
            let (mut run, mut placed) = (before, 0u64);
            let end = pages.end.min((page | (FANOUT - 1)) + 1);
            while page < end {
                let slot = slot_of(page, 0);
                let shadow = match Entry::decode(self.word(leaf, slot).load(Ordering::Relaxed)) {
                    Entry::Page(_) => break,
                    Entry::Shadow(shadow) => Some(shadow),
                    Entry::Empty => None,
                };
                let Some(frame) = frames.pop() else { break };
                adopt(page, frame, shadow);
                run = run.after(slot, None, Some(frame));
                self.store(leaf, slot, Entry::Page(frame).encode());
                placed |= 1 << slot;
                page += 1;
            }
            if placed == 0 {
                break;
            }
            self.note_run(parent, leaf, first, (before, run));
            let change = |mask, value| self.word(leaf, mask).store(value, Ordering::Relaxed);
            change(WORD_OCCUPIED, self.mask(leaf, WORD_OCCUPIED) | placed);
            change(WORD_SHADOWS, self.mask(leaf, WORD_SHADOWS) & !placed);
            self.update_shadow_leaf(leaf, first);
            if page < end {
                break;
            }
        }
        Some(page)
    }

    /// Returns the leaf of a page, and its parent. Missing nodes are made from `reserve`.
    fn leaf_for(&self, page: u64, reserve: &mut NodeReserve<'_>) -> Option<(Option<u32>, u32)> {
        let (mut height, mut root) = self.root();
        let reaches = |height: u32| height >= HEIGHT_MAX || page >> (FANOUT_SHIFT * height) == 0;
        while height == 0 || !reaches(height) {
            let node = reserve.pop()?;
            if height == 0 {
                // Grown to the needed height in one step: a root grown step by step would have
                // empty nodes below.
                height = (0..HEIGHT_MAX).find(|&height| reaches(height + 1)).unwrap_or(HEIGHT_MAX - 1);
            } else {
                self.store(node, 0, node_entry(root, self.run(root).shown_base()));
                self.set_bit(node, WORD_OCCUPIED, 0, true);
                for mask in [WORD_DIRTY, WORD_UNSTABLE] {
                    self.set_bit(node, mask, 0, self.mask(root, mask) != 0);
                }
            }
            height += 1;
            root = node;
            // Release: pairs with the Acquire load in `lookup`.
            let first_word = u64::from(root) * NODE_WORDS;
            self.index.root.store((u64::from(height) << HEIGHT_SHIFT) | first_word, Ordering::Release);
        }
        let (mut parent, mut node) = (None, root);
        for level in (1..height).rev() {
            parent = Some(node);
            let slot = slot_of(page, level);
            let word = self.word(node, slot).load(Ordering::Relaxed);
            node = if let Some(child) = node_of(word) {
                child
            } else {
                let child = reserve.pop()?;
                self.store(node, slot, node_entry(child, NO_BASE));
                self.set_bit(node, WORD_OCCUPIED, slot, true);
                child
            };
        }
        Some((parent, node))
    }

    /// Replaces a page's frame by the frame to which the page moves. The page must be there.
    pub fn replace(&self, page: u64, frame: FrameId) {
        if let Some(path) = self.path(page) {
            self.set_entry(path.parent(), path.nodes[0], page, Entry::Page(frame));
        }
    }

    /// Puts a shadow in place of a page.
    pub fn leave_shadow(&self, page: u64, shadow: Shadow) {
        let Some(path) = self.path(page) else { return };
        let (leaf, slot) = (path.nodes[0], slot_of(page, 0));
        self.set_entry(path.parent(), leaf, page, Entry::Shadow(shadow));
        self.set_bit(leaf, WORD_SHADOWS, slot, true);
        self.update_shadow_leaf(leaf, page);
    }

    /// Forgets an entry, page or shadow, and frees nodes left empty. Its marks must be clear.
    pub fn remove(&self, page: u64) {
        let Some(path) = self.path(page) else { return };
        let (leaf, slot) = (path.nodes[0], slot_of(page, 0));
        self.set_entry(path.parent(), leaf, page, Entry::Empty);
        self.set_bit(leaf, WORD_OCCUPIED, slot, false);
        self.set_bit(leaf, WORD_SHADOWS, slot, false);
        debug_assert_eq!(self.mask(leaf, WORD_DIRTY) >> slot & 1, 0, "a page is clean when it leaves");
        self.update_shadow_leaf(leaf, page);
        self.prune(&path, page);
    }

    /// Adds a leaf to the shadow leaves or removes it, depending on its slots.
    fn update_shadow_leaf(&self, leaf: u32, page: u64) {
        let occupied = self.mask(leaf, WORD_OCCUPIED);
        let is_shadow_only = occupied != 0 && occupied == self.mask(leaf, WORD_SHADOWS);
        let place = (self.mask(leaf, WORD_FILE_PLACE) >> 32) as u32;
        if is_shadow_only == (place != 0) {
            return;
        }
        let owner = umemcg_reclaim::owner_from(self.mask(leaf, WORD_OWNER) as u32);
        let (leaves, file) = (self.index.pool.shadow_leaves(), u64::from(self.index.file));
        let note = |word, value| self.word(leaf, word).store(value, Ordering::Relaxed);
        if is_shadow_only {
            // Before it is on the list, where walks find it.
            note(WORD_FILE_PLACE, file);
            note(WORD_FIRST_PAGE, page & !(FANOUT - 1));
            note(WORD_FILE_PLACE, file | u64::from(leaves.add(owner, leaf)) << 32);
        } else {
            leaves.remove(owner, place);
            note(WORD_FILE_PLACE, 0);
        }
    }

    /// Forgets a leaf if it still holds shadows only. Returns whether it did.
    pub fn remove_shadow_leaf(&self, first_page: u64) -> bool {
        let Some(path) = self.path(first_page) else { return false };
        let leaf = path.nodes[0];
        let occupied = self.mask(leaf, WORD_OCCUPIED);
        if occupied == 0 || occupied != self.mask(leaf, WORD_SHADOWS) {
            return false;
        }
        for slot in 0..FANOUT {
            self.store(leaf, slot, 0);
        }
        self.word(leaf, WORD_OCCUPIED).store(0, Ordering::Relaxed);
        self.word(leaf, WORD_SHADOWS).store(0, Ordering::Relaxed);
        self.update_shadow_leaf(leaf, first_page);
        self.prune(&path, first_page);
        true
    }

    fn prune(&self, path: &Path, page: u64) {
        for level in 0..path.height {
            let node = path.nodes[level as usize];
            if self.mask(node, WORD_OCCUPIED) != 0 {
                return;
            }
            let owner = self.mask(node, WORD_OWNER) as u32;
            for word in [WORD_SHADOWS, WORD_DIRTY, WORD_UNSTABLE, WORD_OWNER, WORD_RUN] {
                self.word(node, word).store(0, Ordering::Relaxed);
            }
            if level + 1 == path.height {
                self.index.root.store(0, Ordering::Release);
            } else {
                let parent = path.nodes[level as usize + 1];
                let slot = slot_of(page, level + 1);
                self.store(parent, slot, 0);
                self.set_bit(parent, WORD_OCCUPIED, slot, false);
            }
            self.index.pool.give_charged(node, umemcg_reclaim::owner_from(owner));
        }
    }

    /// Sets or clears a mark of an existing page.
    pub fn mark(&self, page: u64, mark: Mark, on: bool) {
        let Some(path) = self.path(page) else { return };
        let mut on = on;
        for level in 0..path.height {
            let node = path.nodes[level as usize];
            let before = self.mask(node, mark.word());
            self.set_bit(node, mark.word(), slot_of(page, level), on);
            let after = self.mask(node, mark.word());
            if before == after {
                return;
            }
            on = after != 0;
        }
    }

    /// Returns the first marked page in `from..end`.
    pub fn next_marked(&self, from: u64, end: u64, mark: Mark) -> Option<u64> {
        self.next_in(from, end, mark.word())
    }

    /// Returns the leaves with marked pages in `from..end`: the first page of each, and a bit for
    /// each marked page.
    pub fn marked_leaves(&self, from: u64, end: u64, mark: Mark) -> Vec<(u64, u64)> {
        let mut leaves = Vec::new();
        let mut at = from;
        while let Some(page) = self.next_marked(at, end, mark) {
            let first = page & !(FANOUT - 1);
            let marked = self.path(page).map_or(0, |path| self.mask(path.nodes[0], mark.word()));
            let below = |page: u64| u64::MAX.checked_shl((page - first).min(64) as u32).unwrap_or(0);
            leaves.push((first, marked & below(page) & !below(end)));
            at = first + FANOUT;
        }
        leaves
    }

    /// Returns the first entry, page or shadow, in `from..end`.
    pub fn next_occupied(&self, from: u64, end: u64) -> Option<(u64, Entry)> {
        self.next_in(from, end, WORD_OCCUPIED).map(|page| (page, self.get(page)))
    }

    /// Returns whether there is any page.
    pub fn has_page(&self) -> bool {
        let (height, root) = self.root();
        height > 0 && self.has_page_below(root, height - 1)
    }

    fn has_page_below(&self, node: u32, level: u32) -> bool {
        let mut occupied = self.mask(node, WORD_OCCUPIED);
        if level == 0 {
            return occupied & !self.mask(node, WORD_SHADOWS) != 0;
        }
        while occupied != 0 {
            let slot = u64::from(occupied.trailing_zeros());
            occupied &= occupied - 1;
            let child = node_of(self.word(node, slot).load(Ordering::Relaxed));
            if child.is_some_and(|child| self.has_page_below(child, level - 1)) {
                return true;
            }
        }
        false
    }

    fn next_in(&self, from: u64, end: u64, mask: u64) -> Option<u64> {
        let (height, root) = self.root();
        if height == 0 || from >= end {
            return None;
        }
        if height < HEIGHT_MAX && from >> (FANOUT_SHIFT * height) != 0 {
            return None;
        }
        self.search(root, height - 1, 0, from, mask).filter(|&page| page < end)
    }

    /// Returns the first page ≥ `from` below `node`, whose pages start at `base`.
    fn search(&self, node: u32, level: u32, base: u64, from: u64, mask: u64) -> Option<u64> {
        let span_shift = FANOUT_SHIFT * level;
        let first = if from > base { (from - base) >> span_shift } else { 0 };
        if first >= FANOUT {
            return None;
        }
        let mut bits = self.mask(node, mask) & (u64::MAX << first);
        while bits != 0 {
            let slot = u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            let start = base + (slot << span_shift);
            if level == 0 {
                return Some(start);
            }
            let word = self.word(node, slot).load(Ordering::Relaxed);
            if let Some(child) = node_of(word)
                && let Some(found) = self.search(child, level - 1, start, from, mask)
            {
                return Some(found);
            }
        }
        None
    }
}

#[inline]
fn slot_of(page: u64, level: u32) -> u64 {
    (page >> (FANOUT_SHIFT * level)) & (FANOUT - 1)
}
