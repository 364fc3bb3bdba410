//! Names of a volume of objects as two shrinkers, by the rules of a host directory's: pages go
//! before names, a name without pages loses its content before the kernel is asked to forget it,
//! and a name forgotten by the kernel goes with its last page.

use std::sync::{Arc, Weak};

use umemcg::internal::ListLru;
use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};

use super::node::{NODE_BYTES, Node};
use super::objects::Objects;
use super::tree::Leaving;
use crate::attr::FileKind;
use crate::kernel_cache::IdleInode;
use crate::name_lists::{Listed, NODE, NameLists};

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
    let reclaimer = objects.engine.reclaimer();
    let (dentry, inode) = (reclaimer.reserve_shrinker(), reclaimer.reserve_shrinker());
    let name_list = ListLru::new(reclaimer, &dentry, 0);
    let inode_list = ListLru::new(reclaimer, &inode, 0);
    let registrations = [
        reclaimer.register_shrinker(dentry, Arc::new(DentryShrinker(Arc::downgrade(objects)))),
        reclaimer.register_shrinker(inode, Arc::new(InodeShrinker(Arc::downgrade(objects)))),
    ];
    NameLists::new(name_list, inode_list, registrations)
}

fn lists_of<R>(objects: &Weak<Objects>, look: impl FnOnce(&Arc<Objects>, &NameLists) -> R) -> Option<R> {
    let objects = objects.upgrade()?;
    let lists = objects.lists()?;
    Some(look(&objects, lists))
}

fn count(objects: &Weak<Objects>, target: &ShrinkTarget<'_>, on: Listed) -> Count {
    match lists_of(objects, |_, lists| lists.count(on, target.group)) {
        Some(nr @ 1..) if target.node == NODE => Count::Objects(nr),
        _ => Count::Empty,
    }
}

fn usage(objects: &Weak<Objects>, target: &ShrinkTarget<'_>, on: Listed) -> Usage {
    match count(objects, target, on) {
        Count::Objects(nr) => Usage { objects: nr, reclaimable: nr, bytes: nr * NODE_BYTES },
        _ => Usage::default(),
    }
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
    let nodes = lists.oldest(Listed::Names, target.group, nr);
    let (now_ms, by_name) = (lists.now_ms(), kernel.asks_by_name());
    let mut done = Scanned { scanned: nodes.len() as u64, ..Scanned::default() };
    let (mut idle, mut releasing_bytes) = (Vec::<IdleInode>::new(), 0);
    for node in nodes {
        let cached = objects.tree.lock().idle(node);
        if cached.is_none_or(|cached| cached.has_pages()) {
            continue;
        }
        let leaving = objects.tree.lock().ask_to_leave(node, now_ms);
        match leaving {
            Leaving::Kept => {}
            Leaving::ContentDropped(content, bytes) => {
                drop(content);
                done.freed_bytes += bytes;
            }
            Leaving::Requested(bytes) => done.releasing_bytes += bytes,
            Leaving::Idle(FileKind::Directory, ..) if by_name => {}
            Leaving::Idle(kind, (parent, name), bytes) => {
                releasing_bytes += bytes;
                let names = if by_name { vec![(parent, name.as_bytes().into())] } else { Vec::new() };
                idle.push(IdleInode { node, is_directory: kind == FileKind::Directory, names });
            }
        }
    }
    if !idle.is_empty() && kernel.let_go(idle) {
        done.releasing_bytes += releasing_bytes;
    }
    if by_name {
        // The thread reporting the release may be waiting for the very request that reclaims here,
        // so reclaim must not wait for it.
        done.freed_bytes += std::mem::take(&mut done.releasing_bytes);
    }
    Scan::Done(done)
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
