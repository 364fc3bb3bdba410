//! An open directory and its entries.
//!
//! Positions are the host's own cookies (`d_off`), shortened on ext4
//! ([`dir_position`](super::dir_position)). They stay valid when entries are added or removed, even
//! for a `seekdir` to a very old position. On local file systems a position means the same through
//! any descriptor, so a handle keeps only the node id there: each read opens the directory, seeks
//! to its position, and discards the entries not taken by the caller. Elsewhere (overlayfs, network
//! file systems, and tmpfs before Linux 6.6) such a listing would skip or repeat names. There a
//! handle keeps a descriptor and a window of entries, charged to its group when the directory is
//! opened. A read at any position but the end of the last read drops the window and seeks, so that
//! `rewinddir` sees new names.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{RawDir, SeekFrom};
use rustix::io::Errno;
use umemcg::{ChargeEffort, Group};
use umemcg_base::LeafMutex;

use crate::attr::{FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::descriptor_share::{DescriptorShare, Purpose};
use crate::host::dir_position;
use crate::host::inodes::HostInodes;
use crate::host::volume::HostVolume;
use crate::kernel_io::KernelIo;
use crate::kernel_listing::ListedPart;
use crate::volume::{DirEntry, Lookup, VolumeDir};

/// Bytes of entries fetched by one call to the host.
const WINDOW_BYTES: usize = 8 << 10;
/// The cost of a handle with a window of the shortest names, in bytes.
const LISTING_BYTES: u64 = 32 << 10;

#[derive(Debug)]
struct RawEntry {
    name: CString,
    ino: u64,
    kind: Option<FileKind>,
    /// The host's position after it.
    next_offset: u64,
}

/// A position in a directory, with the entries fetched there and not yet taken.
#[derive(Debug)]
struct Listing {
    fd: OwnedFd,
    /// The host's position of the first entry.
    position: u64,
    entries: VecDeque<RawEntry>,
}

impl Listing {
    /// Reads a window of entries from the descriptor's position on; none at the end of the
    /// directory.
    fn fetch(&mut self) -> Result<(), Errno> {
        let mut space = [MaybeUninit::<u8>::uninit(); WINDOW_BYTES];
        let mut dir = RawDir::new(&self.fd, &mut space);
        while let Some(entry) = dir.next() {
            let entry = match entry {
                // The directory was removed.
                Err(Errno::NOENT) => return Ok(()),
                entry => entry?,
            };
            self.entries.push_back(RawEntry {
                name: entry.file_name().to_owned(),
                ino: entry.ino(),
                kind: FileKind::of(entry.file_type()),
                next_offset: entry.next_entry_cookie(),
            });
            if dir.is_buffer_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct DirHandle {
    inodes: Arc<HostInodes>,
    node: NodeId,
    /// The end of the last read, on volumes with positions that do not outlive a descriptor. Locked
    /// to take it out and to put it back.
    kept: LeafMutex<Option<Box<Listing>>>,
    /// None for a request without an open.
    _open: Option<(DescriptorShare, HandleCharge)>,
}

impl DirHandle {
    /// Opens a directory, at the cost of the caller's group.
    pub(crate) fn open(inodes: &Arc<HostInodes>, caller: &Caller, node: NodeId) -> Result<Self, VfsError> {
        if inodes.find(node)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let keeps = !inodes.host_dir.has_lasting_positions;
        let store = Some(inodes.host_dir.store_id);
        let share = DescriptorShare::take(&caller.group, usize::from(keeps), Purpose::Open, store)?;
        let more_bytes = if keeps { LISTING_BYTES } else { 0 };
        let charge = HandleCharge::take(inodes.charge_effort(), &inodes.engine, &caller.group, more_bytes)?;
        // The open must fail now if the directory may not be listed.
        if inodes.open_directory(node)?.is_none() || !inodes.table.pin(node) {
            return Err(Errno::STALE.into());
        }
        let inodes = Arc::clone(inodes);
        Ok(Self { inodes, node, kept: LeafMutex::default(), _open: Some((share, charge)) })
    }

    /// Returns a directory for one request. It costs nothing and keeps nothing.
    pub(crate) fn for_request(inodes: &Arc<HostInodes>, node: NodeId) -> Result<Self, VfsError> {
        if inodes.find(node)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if !inodes.table.pin(node) {
            return Err(Errno::STALE.into());
        }
        Ok(Self { inodes: Arc::clone(inodes), node, kept: LeafMutex::default(), _open: None })
    }

    /// Returns a listing to continue at a position of the host; `None` if the directory has been
    /// removed.
    fn listing(&self, offset: u64) -> Result<Option<Box<Listing>>, Errno> {
        let kept = self.kept.lock().take();
        let mut listing = match kept {
            Some(listing) if listing.position == offset => return Ok(Some(listing)),
            Some(listing) => listing,
            None => match self.inodes.open_directory(self.node)? {
                Some(fd) => Box::new(Listing { fd, position: 0, entries: VecDeque::new() }),
                None => return Ok(None),
            },
        };
        listing.entries.clear();
        rustix::fs::seek(&listing.fd, SeekFrom::Start(offset))?;
        listing.position = offset;
        Ok(Some(listing))
    }

    /// Keeps the end of a read, where the next read may continue.
    fn keep(&self, listing: Box<Listing>) {
        if !self.inodes.host_dir.has_lasting_positions {
            let replaced = self.kept.lock().replace(listing);
            drop(replaced);
        }
    }

    fn walk(
        &self,
        offset: u64,
        take: &mut dyn FnMut(&DirEntry<'_>, &OwnedFd, &CStr) -> bool,
    ) -> Result<(), VfsError> {
        let is_hashed = self.inodes.host_dir.has_hashed_positions;
        let offset = if is_hashed { dir_position::hosts(offset) } else { offset };
        let Some(mut listing) = self.listing(offset)? else { return Ok(()) };
        loop {
            if listing.entries.is_empty() {
                listing.fetch()?;
            }
            let Some(raw) = listing.entries.front() else { break };
            let is_above_root = self.node == NodeId::ROOT && raw.name.to_bytes() == b"..";
            let next = raw.next_offset;
            let next_offset = if is_hashed { dir_position::shown(listing.position, next) } else { next };
            let entry = DirEntry {
                name: OsStr::from_bytes(raw.name.to_bytes()),
                // The parent of the volume is not shown to the kernel.
                ino: if is_above_root { self.inodes.host_dir.root_stat.attr.ino } else { raw.ino },
                kind: raw.kind,
                next_offset,
                entry: None,
            };
            if !take(&entry, &listing.fd, &raw.name) {
                break;
            }
            listing.position = next;
            listing.entries.pop_front();
        }
        self.keep(listing);
        Ok(())
    }
}

impl Drop for DirHandle {
    fn drop(&mut self) {
        self.inodes.dispose(self.inodes.table.unpin(self.node));
    }
}

impl VolumeDir for DirHandle {
    /// Passes entries from `offset` (0, or a `next_offset`) on to `sink` until it returns `false`
    /// (the entry was not taken) or the directory ends.
    ///
    /// # Errors
    /// The host's; `EINVAL` for a position it never returned.
    fn readdir(&self, offset: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), VfsError> {
        self.walk(offset, &mut |entry, _, _| sink(entry))
    }

    /// Like [`readdir`](Self::readdir) with each name looked up: a taken entry with `entry` set
    /// counts one reference.
    ///
    /// # Errors
    /// As [`readdir`](Self::readdir).
    fn readdirplus(
        &self,
        caller: &Caller,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError> {
        let volume = HostVolume { inodes: Arc::clone(&self.inodes) };
        let mut has_room = true;
        self.walk(offset, &mut |entry, fd, name| {
            let looked_up = match name.to_bytes() {
                b"." | b".." => None,
                // No process has requested the inode yet: if there is no room for it, only the name
                // is listed, and it is looked up when a process requests it.
                _ if !has_room => None,
                _ => match volume.lookup_in(ChargeEffort::Immediate, caller, self.node, (fd, name)) {
                    Ok(entry) => Some(entry),
                    Err(error) => {
                        has_room = error.errno() != Errno::NOMEM;
                        None
                    }
                },
            };
            let taken = sink(&DirEntry { entry: looked_up, ..*entry });
            if let (false, Some(found)) = (taken, looked_up) {
                volume.forget(found.node, 1);
            }
            taken
        })
    }

    fn begin_kernel_io(&self, offset: u64, payer: &Arc<Group>) -> Option<(KernelIo, ListedPart)> {
        let listing = self.inodes.listing(self.node, payer)?;
        Some(KernelIo::begin_listing(listing, offset, payer))
    }

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    /// The host's.
    fn fsyncdir(&self, data_only: bool) -> Result<(), VfsError> {
        // A removed directory has no entries.
        let Some(fd) = self.inodes.open_directory(self.node)? else { return Ok(()) };
        if data_only {
            rustix::fs::fdatasync(&fd)?
        } else {
            rustix::fs::fsync(&fd)?
        }
        Ok(())
    }
}
