//! How a volume without a staging directory begins its streams: by making a file, by opening one to
//! replace it, and by calls on the name of a file being written.

use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use umemcg::Group;

use super::ObjectVolume;
use super::create::NewFile;
use super::node::Facts;
use super::open_file::wants_to_write;
use super::stream::Stream;
use super::stream_file::{STREAM_BYTES, StreamFile};
use super::streams::Streams;
use super::tree::Tree;
use crate::attr::{Attr, NodeId, SetAttr};
use crate::bucket::FileAttributes;
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::volume::VolumeFile;

impl ObjectVolume {
    /// Returns the stream attached to a file.
    pub(super) fn stream_of(&self, node: NodeId) -> Option<(&Arc<Streams>, Arc<Stream>)> {
        let streams = self.streams.as_ref()?;
        Some((streams, streams.of(node)?))
    }

    /// Charges the open file of a stream.
    pub(super) fn stream_charge(&self, caller: &Caller) -> Result<HandleCharge, VfsError> {
        let effort = self.objects.charge_effort();
        Ok(HandleCharge::take(effort, &self.objects.engine, &caller.group, STREAM_BYTES)?)
    }

    /// Opens a file, as a stream if it is to be written that way.
    ///
    /// # Errors
    /// `EBUSY` while another open file is written as a stream; as [`Streams::replace`].
    pub(super) fn open_any(
        &self,
        caller: &Caller,
        node: NodeId,
        flags: OFlags,
    ) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let Some(streams) = &self.streams else { return Ok(Arc::new(self.open_file(caller, node, flags)?)) };
        streams.make_way(node, &caller.group)?;
        if wants_to_write(flags) {
            return Ok(Arc::new(self.open_stream(streams, caller, node, flags)?));
        }
        Ok(Arc::new(self.open_file(caller, node, flags)?))
    }

    fn open_stream(
        &self,
        streams: &Arc<Streams>,
        caller: &Caller,
        node: NodeId,
        flags: OFlags,
    ) -> Result<StreamFile, VfsError> {
        let charge = self.stream_charge(caller)?;
        let content = self.objects.open(caller, node)?;
        let begun = streams.replace(node, &content, flags.contains(OFlags::TRUNC));
        let stream = begun.inspect_err(|_| self.objects.unpin(node))?;
        Ok(StreamFile::new(streams, stream, flags, caller, charge))
    }

    /// Enters a new file and opens it as a stream; `None` if the name may exist by now.
    pub(super) fn new_stream(
        &self,
        streams: &Arc<Streams>,
        caller: &Caller,
        name: (NodeId, &str),
        (node, key): (NodeId, String),
        (flags, attributes): (OFlags, FileAttributes),
        since: Instant,
    ) -> Result<Option<NewFile>, VfsError> {
        let charge = self.stream_charge(caller)?;
        let stream = streams.new_stream((node, key), &caller.group, attributes)?;
        let shown = stream.shown();
        // Until it is listed.
        let turn = streams.drafts.turn(node);
        let attach = |tree: &mut Tree| {
            // The node is new: no other stream is attached to it.
            let _ = tree.attach(&stream);
        };
        if !self.enter_new(caller, name, (node, shown.clone()), since, attach)? {
            return Ok(None);
        }
        streams.note_attached(&stream);
        drop(turn);
        let entry = self.objects.entry(node, self.objects.ino(node), &Facts::Object(shown));
        let file = StreamFile::new(streams, stream, flags, caller, charge);
        Ok(Some((entry, Arc::new(file))))
    }

    /// Stores a file about to be renamed, if it is being written. See [`Streams::settle`].
    pub(super) fn settle_stream(&self, node: NodeId, group: &Arc<Group>) -> Result<(), VfsError> {
        self.streams.as_ref().map_or(Ok(()), |streams| streams.settle(node, group))
    }

    /// Notes that a file being written has lost its name. See [`Streams::lose_name`].
    pub(super) fn lose_stream(&self, node: NodeId) {
        if let Some((streams, stream)) = self.stream_of(node) {
            streams.lose_name(&stream);
        }
    }

    /// Replaces an object by one without bytes.
    pub(super) fn cut_by_name(
        &self,
        caller: &Caller,
        node: NodeId,
        change: &SetAttr,
    ) -> Result<Attr, VfsError> {
        let file = self.open_any(caller, node, OFlags::RDWR | OFlags::TRUNC)?;
        let changed = file.setattr(caller, change)?;
        file.fsync(false)?;
        Ok(changed)
    }
}
