//! An open file written as a stream.
//!
//! A `close` stores a file that fits one request. A multipart upload is completed by a close of the
//! process that opened the file. A close of another process does not complete it: a child with an
//! inherited descriptor may close it while other processes go on writing. The last close of all
//! completes it at last.
//!
//! Processes in pid namespaces outside the daemon's have no number here: the closing process may be
//! a child of the opener. So a file opened there is completed by the last close alone.

use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use umemcg::Group;
use umemcg::files::{File, PinnedPages};

use super::stream::Stream;
use super::streams::Streams;
use crate::attr::{Attr, NodeId, SetAttr};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::volume::{VolumeFile, Whence};

/// `O_DSYNC`; `O_SYNC` includes it.
const O_DSYNC: u32 = 0o10_000;
/// The memory of a stream, without its bytes.
pub(super) const STREAM_BYTES: u64 = 4096;

/// See the module text.
#[derive(Debug)]
pub(super) struct StreamFile {
    stream: Arc<Stream>,
    ino: u64,
    flags: OFlags,
    /// The process that opened the file; 0 if unknown.
    process: u32,
    group: Arc<Group>,
    _charge: HandleCharge,
    /// Last: it may be the last reference to the engine, to which all other fields release memory.
    streams: Arc<Streams>,
}

/// Returns the process of a thread; 0 if unknown.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    // The name of a thread is any bytes, often a text cut within a character.
    let status = String::from_utf8_lossy(&status);
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process.and_then(|process| process.trim().parse().ok()).unwrap_or(0)
}

impl StreamFile {
    /// Takes over one pin of the node.
    pub(super) fn new(
        streams: &Arc<Streams>,
        stream: Arc<Stream>,
        flags: OFlags,
        caller: &Caller,
        charge: HandleCharge,
    ) -> Self {
        streams.drafts.open_streams.add(&stream);
        Self {
            ino: streams.drafts.objects.ino(stream.node),
            stream,
            flags,
            process: process_of(caller.thread),
            group: Arc::clone(&caller.group),
            _charge: charge,
            streams: Arc::clone(streams),
        }
    }

    /// Returns the result of the writer's call, or an error that it has not got yet.
    fn told<T>(&self, result: Result<T, VfsError>) -> Result<T, VfsError> {
        let untold = self.stream.take_untold();
        let value = result?;
        untold?;
        Ok(value)
    }

    fn store(&self, end: bool) -> Result<(), VfsError> {
        self.told(self.streams.store(&self.stream, &self.group, end))
    }

    fn close(&self, is_by_opener: bool) -> Result<(), VfsError> {
        if !self.is_writable() || self.stream.note_close() {
            return Ok(());
        }
        self.store(is_by_opener)
    }

    fn write_at(
        &self,
        offset: Option<u64>,
        group: &Arc<Group>,
        (data, kill_set_id): (&[u8], bool),
    ) -> Result<usize, VfsError> {
        if !self.is_writable() {
            return Err(Errno::BADF.into());
        }
        if data.is_empty() {
            return Ok(0);
        }
        let written = self.streams.write(&self.stream, offset, group, (data, kill_set_id));
        let written = self.told(written)?;
        if self.flags.bits() & O_DSYNC != 0 {
            self.store(false)?;
        }
        Ok(written)
    }

    fn refuse<T>(&self) -> Result<T, VfsError> {
        Err(self.streams.drafts.objects.needs_staging(self.stream.node).into())
    }
}

impl Drop for StreamFile {
    /// May run on a thread that must not wait for a store.
    fn drop(&mut self) {
        self.streams.leave(&self.stream);
        self.streams.drafts.objects.unpin(self.stream.node);
    }
}

impl VolumeFile for StreamFile {
    fn node(&self) -> NodeId {
        self.stream.node
    }
    fn content(&self) -> &Arc<File> {
        self.stream.content.file()
    }
    fn group(&self) -> &Arc<Group> {
        &self.group
    }
    fn is_writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    fn try_read(&self, _: u64, _: usize) -> Option<PinnedPages<'_>> {
        None
    }

    /// # Errors
    /// `EOPNOTSUPP`: written bytes are not kept.
    fn read(&self, _: &Arc<Group>, _: u64, _: usize) -> Result<PinnedPages<'_>, VfsError> {
        self.refuse()
    }

    fn try_write(&self, _: &Arc<Group>, _: u64, _: &[u8], _: bool) -> Option<usize> {
        None
    }

    fn write(&self, group: &Arc<Group>, offset: u64, data: &[u8], kill: bool) -> Result<usize, VfsError> {
        let offset = (!self.flags.contains(OFlags::APPEND)).then_some(offset);
        self.write_at(offset, group, (data, kill))
    }

    /// # Errors
    /// `EOPNOTSUPP`: pages of a mapping come in any order.
    fn write_mapped(&self, _: &Arc<Group>, _: u64, _: &[u8]) -> Result<usize, VfsError> {
        self.refuse()
    }

    fn flush(&self) -> Result<(), VfsError> {
        self.close(true)
    }

    fn flush_of(&self, thread: u32) -> Result<(), VfsError> {
        self.close(self.process != 0 && process_of(thread) == self.process)
    }

    fn flush_may_sleep(&self) -> bool {
        self.is_writable()
    }

    fn closed(&self) {
        let (streams, stream) = (&self.streams, &self.stream);
        if stream.has_news()
            && let Err(error) = streams.store(stream, &self.group, true)
        {
            tracing::error!(node = stream.node.0, %error, "a file that was closed could not be stored");
        }
        if stream.is_unsaved() {
            streams.lose(stream);
        }
    }

    /// Stores the written bytes. A multipart upload is completed and takes no more.
    fn fsync(&self, _: bool) -> Result<(), VfsError> {
        self.store(true)
    }

    /// # Errors
    /// `EOPNOTSUPP`.
    fn fallocate(&self, _: &Arc<Group>, _: FallocateFlags, _: u64, _: u64, _: bool) -> Result<(), VfsError> {
        self.refuse()
    }

    fn lseek(&self, whence: Whence, offset: u64) -> Result<u64, VfsError> {
        let len = self.stream.size();
        match whence {
            _ if offset >= len => Err(Errno::NXIO.into()),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(len),
        }
    }

    fn getattr(&self) -> Result<Attr, VfsError> {
        Ok(self.streams.drafts.objects.shown.attr_of(self.ino, &self.stream.shown()))
    }

    /// # Errors
    /// As [`Streams::set_attributes`].
    fn setattr(&self, _: &Caller, change: &SetAttr) -> Result<Attr, VfsError> {
        self.streams.set_attributes(&self.stream, change)?;
        self.getattr()
    }
}
