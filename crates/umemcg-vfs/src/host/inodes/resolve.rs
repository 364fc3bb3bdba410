//! The way from a node id to the object on the host.
//!
//! Two ways, see [`Resolve`]: by handle, or by the inode's names. A path of names is resolved
//! beneath the volume's directory without following any link. Either result is checked against the
//! expected inode; a mismatch is `ESTALE`. The descriptor goes to a bounded cache. Only directories
//! found by handle have a descriptor capable of I/O.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use umemcg_arena::handle::{FileHandle, name_to_handle, open_by_handle};

use super::HostInodes;
use crate::attr::{FileKind, NodeId};
use crate::host::syscalls::{self, InodeKey};
use crate::volume_config::Resolve;

/// The longest path of one resolution, in bytes (`PATH_MAX` less the zero).
const PATH_BYTES_MAX: usize = 4095;

impl HostInodes {
    /// Returns a descriptor of an inode, in general without I/O rights.
    pub(crate) fn descriptor(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        if node == NodeId::ROOT {
            return Ok(Arc::clone(&self.host_dir.root));
        }
        if let Some(fd) = self.descriptors.get(node) {
            return Ok(fd);
        }
        let (key, kind, handle, orphan, content) = self
            .table
            .with(node, |entry| {
                let content = entry.content.clone().filter(|_| entry.is_nameless);
                (entry.key, entry.kind, entry.handle.clone(), entry.orphan.clone(), content)
            })
            .ok_or(Errno::STALE)?;
        if let Some(fd) = orphan {
            return Ok(fd);
        }
        if let Some(fds) = content.and_then(|content| content.fds()) {
            let again = self.with_descriptors(|| rustix::io::fcntl_dupfd_cloexec(&fds.buffered, 0))?;
            return Ok(Arc::new(again));
        }
        // A directory opened for reading needs no path through /proc for its attributes.
        let access =
            if kind == FileKind::Directory { OFlags::RDONLY | OFlags::DIRECTORY } else { OFlags::PATH };
        let fd = match handle {
            Some(handle) => self.open_handle(key, &handle, access).or_else(|_| self.open_names(node, key))?,
            None => self.open_names(node, key)?,
        };
        let fd = Arc::new(fd);
        self.descriptors.put(node, Arc::clone(&fd));
        Ok(fd)
    }

    pub(super) fn open_handle(
        &self,
        key: InodeKey,
        handle: &FileHandle,
        access: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let fd = self.with_descriptors(|| {
            open_by_handle(self.host_dir.root.as_fd(), handle, access | OFlags::NOFOLLOW)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        // The handle was found by name after the inode was looked up; it may be another inode's.
        if syscalls::stat_fd(&fd)?.key() == key { Ok(fd) } else { Err(Errno::STALE) }
    }

    fn open_names(&self, node: NodeId, key: InodeKey) -> Result<OwnedFd, Errno> {
        let mut nth = 0;
        while let Some(components) = self.table.path(node, nth) {
            nth += 1;
            match self.with_descriptors(|| self.resolve(&components)) {
                Ok(fd) if syscalls::stat_fd(&fd)?.key() == key => return Ok(fd),
                // The name leads to another inode, or to none.
                Ok(_)
                | Err(
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE | Errno::INVAL,
                ) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::STALE)
    }

    /// Opens a path beneath the root without following links; in steps if it exceeds the kernel's
    /// limit.
    fn resolve(&self, components: &[Box<[u8]>]) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let mut from: Option<OwnedFd> = None;
        let mut rest = components;
        loop {
            let mut path: Vec<u8> = Vec::new();
            let mut nr_taken = 0;
            for component in rest {
                let separator = usize::from(!path.is_empty());
                if path.len() + separator + component.len() > PATH_BYTES_MAX {
                    break;
                }
                if separator == 1 {
                    path.push(b'/');
                }
                path.extend_from_slice(component);
                nr_taken += 1;
            }
            if nr_taken == 0 {
                return Err(Errno::STALE);
            }
            // The last component may itself be a symbolic link, which is opened and not followed.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let base = from.as_ref().map_or(self.host_dir.root.as_fd(), |fd| fd.as_fd());
            let fd = openat2_retrying(base, &path, flags, resolve)?;
            rest = &rest[nr_taken..];
            if rest.is_empty() {
                return Ok(fd);
            }
            from = Some(fd);
        }
    }

    /// Runs a call to open a descriptor. If the process has none left, closes the cached
    /// descriptors and tries again.
    pub(crate) fn with_descriptors<T>(&self, call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match call() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.descriptors.clear();
                self.reap_lingering(usize::MAX);
                call()
            }
            result => result,
        }
    }

    /// Returns the file handle of a name in a directory, if the volume resolves inodes by handle.
    pub(crate) fn handle_of(&self, dir: &OwnedFd, name: &std::ffi::CStr) -> Option<Box<FileHandle>> {
        if self.host_dir.resolve != Resolve::Handle {
            return None;
        }
        let (handle, _) = name_to_handle(dir.as_fd(), name, rustix::fs::AtFlags::empty()).ok()?;
        Some(Box::new(handle))
    }

    /// Opens a directory for reading; `None` if it has been removed and is unreachable.
    pub(crate) fn open_directory(&self, node: NodeId) -> Result<Option<OwnedFd>, Errno> {
        let held = match self.descriptor(node) {
            Err(Errno::STALE) if self.table.with(node, |entry| entry.is_nameless) == Some(true) => {
                return Ok(None);
            }
            held => held?,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&held, c".", flags, rustix::fs::Mode::empty());
        match self.with_descriptors(open) {
            Err(Errno::NOENT) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// Calls `openat2`. Retries if, because of a rename on the host, the kernel could not verify that
/// the path stays beneath the directory.
fn openat2_retrying(
    base: std::os::fd::BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    const TRIES_MAX: u32 = 16;
    let mut tries = 0;
    loop {
        tries += 1;
        match rustix::fs::openat2(base, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries < TRIES_MAX => {}
            result => return result,
        }
    }
}
