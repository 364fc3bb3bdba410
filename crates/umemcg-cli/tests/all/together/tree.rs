//! The model of names: places that may have an inode, each with a lock that is held while an
//! operation on it runs.
//!
//! So each such operation has one right result, while operations on other places, of the same
//! directory too, go on beside it. There are a few directories that stay, a few places in each, and
//! two places in each directory that is made in one of those.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::together::disk::Random;
use crate::together::inode::{CutShort, Inode, Kind, Story};

/// The directories that stay are root's. All users may change the first, and, as it is sticky,
/// their own names in the second.
pub const DIRECTORY_MODES: [u32; 3] = [0o777, 0o1777, 0o755];
pub const NR_DIRECTORIES: usize = DIRECTORY_MODES.len();
pub const NR_NAMES: usize = 7;
pub const NR_CHILDREN: usize = 2;

/// The place of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub slot: usize,
    /// In the directory that is in the slot.
    pub child: Option<usize>,
}

impl Place {
    /// Relative to the root of the mount.
    pub fn path(self) -> String {
        let (directory, name) = (self.slot / NR_NAMES, self.slot % NR_NAMES);
        match self.child {
            Some(child) => format!("d{directory}/n{name}/x{child}"),
            None => format!("d{directory}/n{name}"),
        }
    }

    /// Any; mostly not in a directory of a slot.
    pub fn any(random: &mut Random) -> Self {
        let child = (random.below(5) == 0).then(|| random.below(NR_CHILDREN));
        Self { slot: random.below(NR_DIRECTORIES * NR_NAMES), child }
    }

    /// Returns whether it is in the sticky one of the directories that stay.
    pub fn is_in_sticky(self) -> bool {
        self.child.is_none() && DIRECTORY_MODES[self.slot / NR_NAMES] & 0o1000 != 0
    }

    pub fn all() -> impl Iterator<Item = Self> {
        (0..NR_DIRECTORIES * NR_NAMES).map(|slot| Self { slot, child: None })
    }
}

/// The inode at a place, and its entries if it is a directory.
#[derive(Debug, Clone)]
pub struct Node {
    pub inode: Arc<Inode>,
    pub children: [Option<Arc<Inode>>; NR_CHILDREN],
}

impl Node {
    pub fn new(inode: Arc<Inode>) -> Self {
        Self { inode, children: [const { None }; NR_CHILDREN] }
    }
}

/// Some places and what is there afterwards.
pub type After = Vec<(Place, Option<Node>)>;

#[derive(Debug, Default)]
struct Slot {
    node: RwLock<Option<Node>>,
    /// Odd while an operation that may change it is under way.
    turns: AtomicU64,
    story: Story,
}

/// All places.
#[derive(Debug)]
pub struct Tree {
    slots: Vec<Slot>,
    /// Operations during which the daemon died: they have happened, or not.
    unsure: Mutex<Vec<After>>,
}

/// Places that no other operation may change.
#[derive(Debug)]
pub struct Held<'a> {
    tree: &'a Tree,
    nodes: Vec<(usize, RwLockWriteGuard<'a, Option<Node>>)>,
}

/// A place that no operation may change.
#[derive(Debug)]
pub struct Looked<'a>(RwLockReadGuard<'a, Option<Node>>, Place);

/// Returns the node at a place whose slot holds `node`: an inode, nothing, or what a path through
/// it says.
fn resolve(node: Option<&Node>, place: Place) -> Result<Option<Node>, Errno> {
    let Some(child) = place.child else { return Ok(node.cloned()) };
    match node {
        Some(node) if node.inode.kind == Kind::Directory => Ok(node.children[child].clone().map(Node::new)),
        Some(node) if node.inode.is_file() => Err(Errno::NOTDIR),
        // A link leads nowhere.
        _ => Err(Errno::NOENT),
    }
}

impl Tree {
    pub fn new() -> Self {
        let slots = Place::all().map(|_| Slot::default()).collect();
        Self { slots, unsure: Mutex::default() }
    }

    pub fn put(&mut self, place: Place, node: Node) {
        *self.slots[place.slot].node.get_mut().unwrap() = Some(node);
    }

    /// Waits until no other operation is under way at these places. Fails where one was cut short.
    pub fn hold(&self, places: &[Place]) -> Result<Held<'_>, CutShort> {
        let mut slots: Vec<usize> = places.iter().map(|place| place.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let hold = |slot: usize| {
            let node = self.slots[slot].node.write().unwrap_or_else(PoisonError::into_inner);
            self.slots[slot].turns.fetch_add(1, Ordering::SeqCst);
            (slot, node)
        };
        let held = Held { tree: self, nodes: slots.into_iter().map(hold).collect() };
        if held.slots().any(|slot| self.is_unsure(slot)) { Err(CutShort) } else { Ok(held) }
    }

    /// Keeps a place as it is. Fails where an operation was cut short.
    pub fn look(&self, place: Place) -> Result<Looked<'_>, CutShort> {
        let node = self.slots[place.slot].node.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_unsure(place.slot) { Err(CutShort) } else { Ok(Looked(node, place)) }
    }

    fn is_unsure(&self, slot: usize) -> bool {
        let unsure = self.unsure.lock().unwrap_or_else(PoisonError::into_inner);
        unsure.iter().flatten().any(|(place, _)| place.slot == slot)
    }

    /// Returns whether a slot is occupied, and the number of times that may have changed it; `None`
    /// while it may, or where an operation was cut short.
    pub fn glance(&self, slot: usize) -> Option<(bool, u64)> {
        let node = self.slots[slot].node.try_read().ok().filter(|_| !self.is_unsure(slot))?;
        Some((node.is_some(), self.slots[slot].turns.load(Ordering::SeqCst)))
    }

    pub fn nr_turns(&self, slot: usize) -> u64 {
        self.slots[slot].turns.load(Ordering::SeqCst)
    }

    pub fn tell(&self, place: Place, what: String) {
        self.slots[place.slot].story.tell(what);
    }

    pub fn story(&self, slot: usize) -> String {
        self.slots[slot].story.text()
    }

    /// Returns the contents of the slots.
    pub fn nodes(&self) -> Vec<Option<Node>> {
        self.slots
            .iter()
            .map(|slot| slot.node.read().unwrap_or_else(PoisonError::into_inner).clone())
            .collect()
    }

    /// Returns the possible contents of a slot after the daemon's death, with all of the operations
    /// that happened or not.
    pub fn unsure(&self) -> Vec<After> {
        self.unsure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Puts nodes at places.
pub fn apply(after: &After, mut slot_of: impl FnMut(usize, &mut dyn FnMut(&mut Option<Node>))) {
    for (place, node) in after {
        slot_of(place.slot, &mut |there| match place.child {
            None => there.clone_from(node),
            Some(child) => {
                let directory = there.as_mut().expect("a path led through it");
                directory.children[child] = node.as_ref().map(|node| Arc::clone(&node.inode));
            }
        });
    }
}

impl Held<'_> {
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().map(|(slot, _)| *slot)
    }

    pub fn at(&self, place: Place) -> Result<Option<Node>, Errno> {
        let (_, node) = self.nodes.iter().find(|(slot, _)| *slot == place.slot).unwrap();
        resolve(node.as_ref(), place)
    }

    /// The operation has happened.
    pub fn become_(&mut self, after: &After) {
        apply(after, |slot, set| {
            let (_, node) = self.nodes.iter_mut().find(|(held, _)| *held == slot).unwrap();
            set(node);
        });
    }

    /// The daemon died: it has happened, or not.
    pub fn may_become(&self, after: &After) {
        if !after.is_empty() {
            self.tree.unsure.lock().unwrap_or_else(PoisonError::into_inner).push(after.clone());
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (slot, _) in &self.nodes {
            self.tree.slots[*slot].turns.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Looked<'_> {
    /// The directory in the slot, if the place is in that.
    pub fn directory(&self) -> Option<Arc<Inode>> {
        let node = self.1.child.and_then(|_| self.0.as_ref());
        node.filter(|node| node.inode.kind == Kind::Directory).map(|node| Arc::clone(&node.inode))
    }

    pub fn there(&self) -> Result<Option<Arc<Inode>>, Errno> {
        Ok(resolve(self.0.as_ref(), self.1)?.map(|node| node.inode))
    }
}
