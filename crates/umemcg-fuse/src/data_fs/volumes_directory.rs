//! The directory of all volumes: virtual and read-only. Its entries are the volumes in the order of
//! their addition.
//!
//! Lookups of its entries are not counted, because a volume's root exists as long as the volume.
//! The kernel never caches the absence of a volume, so a volume added later is seen immediately.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;
use umemcg_base::{LeafMutex, PAGE_SIZE_U64};
use umemcg_vfs::volumes::{Member, Syncing};
use umemcg_vfs::{Attr, Entry, NodeId, StatFs, VfsError};

use super::DataFs;
use crate::wire::DirBuffer;
use crate::wire::reply::EntryOut;

/// The most volumes synced at a time.
const NR_SYNCS_MAX: usize = 64;
/// The most volumes listed at a time.
const BATCH: usize = 256;
/// A directory in a listing: the type bits of its mode.
const DIRECTORY: u32 = 4;
/// Listing positions of the volumes start behind those of `.` and `..`.
const NR_DOTS: u64 = 2;

impl DataFs {
    /// Returns the attributes of the directory.
    pub(super) fn top_attr(&self) -> Attr {
        Attr {
            ino: NodeId::ROOT.0,
            size: 0,
            blocks: 0,
            mode: 0o040_755,
            nlink: 2u32.saturating_add(self.volumes.len() as u32),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            btime: Some(self.since),
            blksize: PAGE_SIZE_U64 as u32,
        }
    }

    /// Returns the root of the volume of this name.
    pub(super) fn top_lookup(&self, name: &OsStr) -> Result<Entry, VfsError> {
        root_of(&self.volumes.find(name).ok_or(Errno::NOENT)?)
    }

    /// Returns the statistics of the pool, as those of a file system.
    pub(super) fn top_statfs(&self) -> StatFs {
        let root = self.engine.root();
        let pages = |bytes: u64| bytes / PAGE_SIZE_U64;
        let free = pages(root.margin_bytes());
        StatFs {
            frsize: PAGE_SIZE_U64,
            bsize: PAGE_SIZE_U64,
            blocks: pages(root.max_bytes()),
            bfree: free,
            bavail: free,
            files: self.volumes.len() as u64,
            ffree: 0,
            namemax: 255,
        }
    }

    /// Fills a listing from `offset` on.
    pub(super) fn top_readdir(&self, offset: u64, plus: bool, list: &mut DirBuffer) {
        let mut push = |name: &[u8], ino, next, out: EntryOut| {
            if plus {
                list.push_plus(&out, ino, next, DIRECTORY, name)
            } else {
                list.push(ino, next, DIRECTORY, name)
            }
        };
        for (at, dot) in [&b"."[..], b".."].into_iter().enumerate() {
            if offset <= at as u64 && !push(dot, NodeId::ROOT.0, at as u64 + 1, EntryOut::default()) {
                return;
            }
        }
        let mut after = offset.saturating_sub(NR_DOTS);
        loop {
            let members = self.volumes.list(after, BATCH);
            for member in &members {
                // Without an entry the kernel looks the name up when it is needed.
                let entry = if plus { root_of(member).ok() } else { None };
                let out =
                    entry.as_ref().map(|entry| Self::entry_out(entry, self.lifetimes)).unwrap_or_default();
                let ino = entry.map_or_else(|| member.listed_root_ino(), |entry| entry.attr.ino);
                if !push(member.name().as_bytes(), ino, member.serial() + NR_DOTS, out) {
                    return;
                }
                after = member.serial();
            }
            if members.len() < BATCH {
                return;
            }
        }
    }

    /// Makes all accepted changes on all volumes durable. Continues after an error, and reports one
    /// of the errors. Volumes do not wait for each other's stores, unless many of these hang.
    ///
    /// # Errors
    /// Write-back errors, and the host's.
    pub fn sync_volumes(&self) -> Result<(), VfsError> {
        // A single volume is synced even if no change was noted.
        let is_single = self.volumes.whole().is_some();
        let members = self.volumes.list(0, usize::MAX);
        let (next, result) = (AtomicUsize::new(0), LeafMutex::new(Ok(())));
        let work = || {
            while let Some(member) = members.get(next.fetch_add(1, Ordering::Relaxed)) {
                // Not before its turn: a sync waiting for this one is under way all the same.
                let syncing = member.begin_sync();
                if syncing.is_none() && !is_single {
                    continue;
                }
                match member.volume().syncfs() {
                    Ok(()) => syncing.into_iter().for_each(Syncing::finish),
                    Err(error) => *result.lock() = Err(error),
                }
            }
        };
        thread::scope(|threads| {
            for _ in 1..members.len().min(NR_SYNCS_MAX) {
                let thread = thread::Builder::new().name("umemcg-sync".into());
                if thread.spawn_scoped(threads, work).is_err() {
                    // The running threads do all the work.
                    break;
                }
            }
            work();
        });
        std::mem::replace(&mut *result.lock(), Ok(()))
    }
}

/// Returns the root of a volume as an entry of the directory.
fn root_of(member: &Arc<Member>) -> Result<Entry, VfsError> {
    let attr = member.volume().getattr(NodeId::ROOT)?;
    Ok(Entry { node: NodeId(member.root_id()), generation: 0, attr: member.attr_to_kernel(attr) })
}
