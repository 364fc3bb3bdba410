//! The attributes shown for a file with cached content, and the adoption of changes on the host.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::Content;
use crate::attr::{Attr, SetAttr};
use crate::host::shown_times::{OwnOperation, Shown, Stamp};
use crate::host::syscalls::HostStat;

impl Content {
    /// Returns the attributes to show, after reading the host's with `stat`. A change from outside
    /// is adopted: clean pages are dropped, and the host's length is taken. An open sees every
    /// earlier change: it waits for an operation of ours under way.
    pub(crate) fn look(
        &self,
        is_open: bool,
        stat: impl Fn() -> Result<HostStat, Errno>,
    ) -> Result<Attr, Errno> {
        self.update_host_atime();
        let times = &self.store.times;
        let shared = if is_open { Some(times.shared()) } else { times.try_shared() };
        let host = stat()?;
        self.host_dir.clock.saw(host.attr.ctime);
        let shown = match &shared {
            Some(_) => times.peek(Stamp::of(&host.attr)).map(|shown| (host.attr.mode, shown)),
            // An operation of ours under way may take set-id bits away and put them back.
            None => {
                // The known times may be from before a change already reported to the kernel.
                if let Some(changes) = self.host_dir.changes.get() {
                    changes.note(host.attr.ino);
                }
                times.known().map(|(known, shown)| (known.mode, shown))
            }
        };
        drop(shared);
        match shown {
            Some((mode, shown)) => Ok(self.merge(Attr { mode, ..host.attr }, shown)),
            None => self.adopt(stat),
        }
    }

    /// Adopts a change from outside. The decisive look keeps our own write-back out: its effects
    /// must not be mistaken for a change from outside.
    fn adopt(&self, stat: impl Fn() -> Result<HostStat, Errno>) -> Result<Attr, Errno> {
        let mut seen = None;
        self.file.revalidate(|| {
            let alone = self.store.times.exclusive();
            let host = stat();
            let changed = host.ok().and_then(|host| {
                alone.found(Stamp::of(&host.attr));
                alone.change().map(|change| (change, host.attr.size))
            });
            seen = Some((host, alone, changed));
            changed.map(|(_, len)| len)
        });
        let Some((host, alone, changed)) = seen else { unreachable!("revalidation looks once") };
        let host = host?;
        if let Some((change, _)) = changed {
            tracing::debug!(ino = host.attr.ino, "changed from outside; cached pages dropped");
            self.store.privileges.note();
            // A change noted since this look stays: pages read meanwhile may be older.
            alone.adopted(change);
            self.store.times.took_content(self.host_dir.clock.now());
            if let Some(pages) = self.kernel_pages() {
                pages.note_changed();
                // A request that ended before the note did not expect the drop.
                self.file.note_dropped_above();
            }
        }
        Ok(self.merge(host.attr, self.store.times.shown()))
    }

    /// Returns the attributes to show for a stamp read at an unknown moment; `None` if a closer
    /// look is needed.
    pub(crate) fn peek_attr(&self, host: &HostStat) -> Option<Attr> {
        if self.was_read() {
            return None;
        }
        let shown = self.store.times.peek(Stamp::of(&host.attr))?;
        Some(self.merge(host.attr, shown))
    }

    fn merge(&self, mut attr: Attr, shown: Option<Shown>) -> Attr {
        attr.size = self.file.len();
        // Data not yet on the host has no blocks there, and a file without blocks looks like one
        // hole to archivers.
        let pages = |bytes: u64| bytes.div_ceil(4096) * 8;
        let unwritten_blocks = self.file.nr_unwritten().saturating_mul(8);
        if unwritten_blocks > 0 {
            attr.blocks = attr.blocks.saturating_add(unwritten_blocks).min(attr.blocks.max(pages(attr.size)));
        }
        if let Some(shown) = shown {
            (attr.mtime, attr.ctime) = (shown.mtime, shown.ctime);
        }
        attr
    }

    /// Changes attributes of the host's file through a descriptor of it. Returns the new
    /// attributes, if they could be read.
    pub(crate) fn change_attributes(
        &self,
        held: BorrowedFd<'_>,
        change: &SetAttr,
        apply: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Option<HostStat>, Errno> {
        let did = OwnOperation::Attributes { mtime: change.mtime.is_some() };
        let (changed, after) = self.store.exclusively(held, |_| (apply(), did));
        if change.mode.is_some() {
            self.store.privileges.note_mode();
        }
        changed.map(|()| after)
    }

    /// Changes extended attributes of the host's file through a descriptor of it.
    pub(crate) fn change_xattrs(
        &self,
        held: BorrowedFd<'_>,
        change: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let did = OwnOperation::Attributes { mtime: false };
        let (changed, _) = self.store.exclusively(held, |_| (change(), did));
        self.store.privileges.note();
        changed
    }

    /// Notes that an operation of ours on names changed attributes on the host, as read by `stat`.
    pub(crate) fn renamed(&self, stat: impl FnOnce() -> Result<HostStat, Errno>) -> Result<(), Errno> {
        let alone = self.store.times.exclusive();
        let host = stat()?;
        self.host_dir.clock.saw(host.attr.ctime);
        alone.left(Stamp::of(&host.attr), OwnOperation::Attributes { mtime: false });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::fs::OFlags;

    use crate::attr::{NodeId, Timestamp};
    use crate::host::shown_times::{OwnOperation, SETTLES_AFTER_NS, Stamp};
    use crate::host::syscalls;
    use crate::host::tests::{Fixture, until_asleep};
    use crate::volume::{Lookup, Open};

    #[test]
    fn a_store_that_changes_no_time_is_seen_by_a_later_open() {
        let v = Fixture::new();
        let path = v.create("other").0.with_file_name("f");
        std::fs::write(&path, "first").unwrap();
        let node = v.vfs.lookup(&v.caller(), NodeId::ROOT, OsStr::new("f")).unwrap().node;
        let open = || v.vfs.open(&v.caller(), node, OFlags::RDONLY).unwrap();
        let read = || open().read(&v.group, 0, 5).unwrap().to_vec();
        assert_eq!(read(), b"first");
        let content = v.content(&open());
        // As through a mapping whose page is dirty: the stamp stays.
        let host = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let mtime = host.metadata().unwrap().modified().unwrap();
        let alone = content.store.times.exclusive();
        host.write_all_at(b"later", 0).unwrap();
        host.set_modified(mtime).unwrap();
        alone.left(Stamp::of(&syscalls::stat_fd(&host).unwrap().attr), OwnOperation::Access);
        drop(alone);
        assert_eq!(read(), b"first", "its stamp is believed");
        let now = content.host_dir.clock.now().as_nanoseconds();
        content.store.times.doubt_if_due(|| Timestamp::from_nanoseconds(now + SETTLES_AFTER_NS));
        assert_eq!(read(), b"later");
    }

    #[test]
    fn an_outside_change_during_write_back_costs_no_data() {
        let v = Fixture::new();
        let (path, file) = v.create("f");
        let content = v.content(&file);
        file.write(&v.group, 0, &[b'a'; 100], false).unwrap();
        file.fsync(false).unwrap();
        file.write(&v.group, 40960, &[b'b'; 4096], false).unwrap();
        // Another program on the host.
        std::io::Write::write_all(&mut std::fs::OpenOptions::new().append(true).open(&path).unwrap(), b"x")
            .unwrap();
        let host = std::fs::File::open(&path).unwrap();
        let nr_looks = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let paused = content.store.pause();
            // The file itself: a sync of the open one would wait for the pause before it writes.
            let flusher = scope.spawn(|| content.file.write_back().unwrap());
            while content.file.nr_dirty() > 0 {
                std::thread::yield_now();
            }
            let (tell, told) = std::sync::mpsc::channel();
            let (content, looks, host) = (&content, &nr_looks, &host);
            let opener = scope.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                let stat = || {
                    let stat = syscalls::stat_fd(host);
                    looks.fetch_add(1, Ordering::Relaxed);
                    stat
                };
                content.look(false, stat).unwrap();
            });
            let opener_id = told.recv().unwrap();
            while nr_looks.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            until_asleep(opener_id);
            drop(paused);
            flusher.join().unwrap();
            opener.join().unwrap();
        });
        assert_eq!(content.file.len(), 45056);
        assert_eq!(file.read(&v.group, 40960, 4096).unwrap().to_vec(), [b'b'; 4096]);
    }

    #[test]
    fn an_open_sees_an_outside_change_amid_an_operation_of_ours() {
        let v = Fixture::new();
        let (path, file) = v.create("f");
        let content = v.content(&file);
        file.write(&v.group, 0, &[b'a'; 100], false).unwrap();
        file.fsync(false).unwrap();
        let host = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::thread::scope(|scope| {
            let alone = content.store.times.exclusive();
            alone.found(Stamp::of(&syscalls::stat_fd(&host).unwrap().attr));
            host.set_len(7).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let (v, node) = (&v, file.node());
            let opener = scope.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                let file = v.vfs.open(&v.caller(), node, rustix::fs::OFlags::RDONLY).unwrap();
                file.content().len()
            });
            until_asleep(told.recv().unwrap());
            alone.left(Stamp::of(&syscalls::stat_fd(&host).unwrap().attr), OwnOperation::Access);
            drop(alone);
            assert_eq!(opener.join().unwrap(), 7);
        });
    }
}
