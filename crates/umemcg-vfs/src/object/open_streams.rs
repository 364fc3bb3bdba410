//! The open streams, attached or not. A rename or a change of attributes on this volume replaces
//! the base version of a stream. An open stream must know the new one, because its file may be
//! written further.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use umemcg_base::LeafMutex;

use super::file_labels::FileLabels;
use super::stream::Stream;
use crate::attr::NodeId;
use crate::bucket::ObjectInfo;

/// See the module text. The charge of an open file pays for its entry.
#[derive(Debug, Default)]
pub(super) struct OpenStreams(LeafMutex<BTreeMap<NodeId, Vec<Weak<Stream>>>>);

impl OpenStreams {
    pub(super) fn add(&self, stream: &Arc<Stream>) {
        self.0.lock().entry(stream.node).or_default().push(Arc::downgrade(stream));
    }

    /// Returns whether no other stream of the node is open.
    pub(super) fn remove(&self, stream: &Stream) -> bool {
        let mut streams = self.0.lock();
        if let Some(of_node) = streams.get_mut(&stream.node) {
            of_node.retain(|other| !std::ptr::eq(other.as_ptr(), stream));
            if !of_node.is_empty() {
                return false;
            }
            streams.remove(&stream.node);
        }
        true
    }

    /// Gives the streams based on version `from` the base version `to`. It has the same bytes, and
    /// `labels` if these have changed. The caller holds the turn of the node.
    pub(super) fn rebase(
        &self,
        node: NodeId,
        (from, to): (&ObjectInfo, &ObjectInfo),
        labels: Option<&FileLabels>,
    ) {
        let streams = self.0.lock().get(&node).cloned().unwrap_or_default();
        for stream in streams.iter().filter_map(Weak::upgrade) {
            stream.rebase(from, to, labels);
        }
    }
}
