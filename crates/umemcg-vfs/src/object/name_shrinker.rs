//! The names of a volume of objects as two shrinkers, by the rules of a host directory's shrinkers:
//! pages go before names; a name without pages loses its content before the kernel is asked to
//! forget it; a name forgotten by the kernel goes with its last page.

use std::sync::{Arc, Weak};

use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};

use super::node::{NODE_BYTES, Node};
use super::objects::Objects;
use crate::name_lists::{Listed, NameLists};
use crate::name_reclaim::{self, LeaveOutcome};

/// The cost of recreating a name: a request to a store.
const NAME_SEEKS: u32 = 32;

/// Names in the kernel's cache.
#[derive(Debug)]
struct DentryShrinker(Weak<Objects>);

/// Names kept by us only.
#[derive(Debug)]
struct InodeShrinker(Weak<Objects>);

/// Registers the shrinkers of a volume.
pub(super) fn register(objects: &Arc<Objects>) -> NameLists {
    let [dentry, inode] = [Arc::downgrade(objects), Arc::downgrade(objects)];
    let (dentry, inode) = (Arc::new(DentryShrinker(dentry)), Arc::new(InodeShrinker(inode)));
    NameLists::new(objects.engine.reclaimer(), dentry, inode)
}

fn lists_of<R>(objects: &Weak<Objects>, look: impl FnOnce(&Arc<Objects>, &NameLists) -> R) -> Option<R> {
    let objects = objects.upgrade()?;
    let lists = objects.lists()?;
    Some(look(&objects, lists))
}

fn count(objects: &Weak<Objects>, target: &ShrinkTarget<'_>, on: Listed) -> Count {
    lists_of(objects, |_, lists| lists.count(on, target)).unwrap_or(Count::Empty)
}

fn usage(objects: &Weak<Objects>, target: &ShrinkTarget<'_>, on: Listed) -> Usage {
    lists_of(objects, |_, lists| lists.usage(on, target, NODE_BYTES)).unwrap_or_default()
}

impl Shrinker for DentryShrinker {
    fn name(&self) -> String {
        "dentry".into()
    }
    fn seeks(&self) -> u32 {
        NAME_SEEKS
    }
    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        count(&self.0, target, Listed::Names)
    }
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        lists_of(&self.0, |objects, lists| ask_for_names(objects, lists, target, nr)).unwrap_or(Scan::Stop)
    }
    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        usage(&self.0, target, Listed::Names)
    }
}

impl Shrinker for InodeShrinker {
    fn name(&self) -> String {
        "inode".into()
    }
    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        count(&self.0, target, Listed::Inodes)
    }
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        lists_of(&self.0, |objects, lists| drop_kept(objects, lists, target, nr)).unwrap_or(Scan::Stop)
    }
    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        usage(&self.0, target, Listed::Inodes)
    }
}

/// Asks the kernel to forget the oldest names of a group.
fn ask_for_names(objects: &Objects, lists: &NameLists, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
    let Some(kernel) = objects.kernel.get() else { return Scan::Stop };
    let now_ms = lists.now_ms();
    let leave = |node| {
        let cached = objects.tree.lock().idle(node);
        if cached.is_none_or(|cached| cached.has_pages()) {
            return LeaveOutcome::Kept;
        }
        let left = objects.tree.lock().idle_mut(node).map(|found| found.ask_to_leave(lists, node, now_ms));
        left.map_or(LeaveOutcome::Kept, |(outcome, _content)| outcome)
    };
    let not_asked = |node| {
        if let Ok(found) = objects.tree.lock().get_mut(node) {
            found.place.not_asked();
        }
    };
    name_reclaim::ask_for_names(lists, &**kernel, (target.group, nr), leave, not_asked)
}

/// Drops the oldest names of a group kept by us only, if no page of them is left.
fn drop_kept(objects: &Objects, lists: &NameLists, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
    let nodes = lists.oldest(Listed::Inodes, target.group, nr);
    let mut done = Scanned { scanned: nodes.len() as u64, ..Scanned::default() };
    for node in nodes {
        let (removed, bytes) = {
            let cached = objects.tree.lock().get(node).map(Node::cached);
            if cached.is_ok_and(|cached| cached.has_own_pages()) {
                continue;
            }
            let mut tree = objects.tree.lock();
            let removed = tree.drop_kept(lists, node);
            let bytes = removed.len() as u64 * NODE_BYTES;
            (removed, bytes)
        };
        done.freed_bytes += bytes;
        objects.dispose(removed);
    }
    Scan::Done(done)
}
