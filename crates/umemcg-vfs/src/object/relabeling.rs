//! A change of the labels of a file.
//!
//! If the file is being written, the new labels are stored with its bytes. Otherwise the metadata
//! of the object are replaced. Where the store cannot replace metadata, the object is stored anew.

use std::sync::Arc;

use rustix::io::Errno;
use umemcg::Group;

use super::content::Content;
use super::drafts::Drafts;
use super::file_labels::LabelChange;
use crate::attr::NodeId;
use crate::bucket::{ObjectInfo, TenantScope};
use crate::error::VfsError;

/// A change of the labels of a file.
pub(super) struct Relabeling<'a> {
    pub(super) drafts: &'a Drafts,
    pub(super) node: NodeId,
    pub(super) content: &'a Arc<Content>,
    pub(super) group: &'a Arc<Group>,
    pub(super) change: LabelChange<'a>,
}

impl Relabeling<'_> {
    /// Makes it. May sleep for memory, the disk and the store. A change not in the store when this
    /// returns is stored by the next `fsync` or `close`.
    ///
    /// # Errors
    /// Those of `change`; `ESTALE` when the object was replaced meanwhile; as a write's.
    pub(super) fn run(&self) -> Result<(), VfsError> {
        let Self { drafts, node, content, group, change } = *self;
        let _scope = TenantScope::of(group);
        let objects = &drafts.objects;
        let len = content.file().len();
        let replaces = objects.shown.are_stored && objects.bucket.replaces_metadata(len);
        let is_clean = || {
            let has_name = !objects.tree.lock().was_removed(node);
            has_name && content.draft().is_none_or(|draft| draft.is_clean())
        };
        if replaces && is_clean() {
            let _turn = drafts.turn(node);
            // It may have begun to change meanwhile, or lost its name.
            if is_clean() {
                return self.replace();
            }
        }
        let draft = drafts.draft_of((node, content), group, u64::MAX)?;
        // First: a refused change would count as one, and the file would be stored anew.
        change(&mut draft.labels())?;
        let changing = drafts.begin_change(content, draft)?;
        Ok(draft.change_labels(&changing, change)?)
    }

    /// Replaces the metadata of an object. The caller holds its turn.
    fn replace(&self) -> Result<(), VfsError> {
        let Self { drafts, node, content, change, .. } = *self;
        let objects = &drafts.objects;
        let draft = content.draft();
        let base = draft.map_or_else(|| Some(content.place().info), |draft| draft.base());
        let base = base.ok_or(Errno::STALE)?;
        let key = objects.tree.lock().path(node)?;
        let (there, mut labels) = objects.labels_of(node, &key, &base)?;
        change(&mut labels)?;
        labels.check_room()?;
        let replaced = objects.bucket.replace_metadata(&key, &there, &labels.to_metadata());
        let info = replaced.map_err(|error| objects.failures.report(&error))?;
        let info = ObjectInfo { attributes: Some(labels.attributes), ..info.without_metadata() };
        let _ = objects.tree.lock().note_stored(node, info.clone());
        content.move_to(&key, &info);
        drafts.open_streams.rebase(node, (&base, &info), Some(&labels));
        if let Some(draft) = draft {
            draft.relabel(&info, labels, change);
        }
        Ok(())
    }
}
