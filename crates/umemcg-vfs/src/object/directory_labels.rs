//! The labels of a directory (its attributes and further metadata), stored with the directory's own
//! object.

use rustix::io::Errno;

use super::ObjectVolume;
use super::create::Bytes;
use super::file_labels::{FileLabels, LabelChange};
use super::node::Facts;
use crate::attr::NodeId;
use crate::bucket::{BucketError, Expected, Metadata};
use crate::error::VfsError;

impl ObjectVolume {
    /// Returns the labels of a file or a directory. May sleep for the store.
    ///
    /// # Errors
    /// `ESTALE` when the object has another version by now; the store's.
    pub(super) fn labels(&self, node: NodeId) -> Result<FileLabels, Errno> {
        let objects = &self.objects;
        if let Some((_, stream)) = self.stream_of(node) {
            return Ok(stream.labels());
        }
        let (facts, content) = {
            let tree = objects.tree.lock();
            let found = tree.get(node).or_else(|errno| tree.removed(node).ok_or(errno))?;
            (found.facts.clone(), found.content.clone())
        };
        match facts {
            Facts::Object(info) => match content.as_ref().and_then(|content| content.draft()) {
                Some(draft) => Ok(draft.labels()),
                None => {
                    let key = objects.tree.lock().path(node)?;
                    Ok(objects.labels_of(node, &key, &info)?.1)
                }
            },
            Facts::Directory(_) => self.labels_of_directory(node),
        }
    }

    fn labels_of_directory(&self, node: NodeId) -> Result<FileLabels, Errno> {
        let objects = &self.objects;
        let (prefix, known) = {
            let tree = objects.tree.lock();
            (tree.prefix(node)?, tree.get(node)?.facts.attributes())
        };
        // With certainty, since the object is stored anew from these.
        let find = || objects.bucket.find(&prefix).map_err(|error| objects.failures.report(&error));
        let metadata = if prefix.is_empty() { None } else { find()?.and_then(|there| there.metadata) };
        let usual = known.unwrap_or(objects.shown.of_directory());
        Ok(FileLabels::of(&metadata.unwrap_or_default(), &usual))
    }

    /// Changes the labels of a directory. They are stored with its own object, which is made if
    /// there is none. The labels of the top are only remembered.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where something would be lost or cannot be stored, `ENOSPC` for too much of it,
    /// those of `change`, and the store's.
    pub(super) fn relabel_directory(&self, node: NodeId, change: LabelChange<'_>) -> Result<(), VfsError> {
        let objects = &self.objects;
        let _turn = self.drafts()?.turn(node);
        let mut labels = self.labels_of_directory(node)?;
        change(&mut labels)?;
        let prefix = objects.tree.lock().prefix(node)?;
        if prefix.is_empty() && labels != FileLabels::new(labels.attributes) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !prefix.is_empty() {
            labels.check_room()?;
            self.store_directory(&prefix, &labels.to_metadata())?;
        }
        if let Ok(found) = objects.tree.lock().get_mut(node) {
            found.facts = Facts::Directory(Some(labels.attributes));
        }
        Ok(())
    }

    fn store_directory(&self, key: &str, metadata: &Metadata) -> Result<(), Errno> {
        match self.objects.bucket.upload(key, &Bytes(b""), metadata, &Expected::Anything) {
            // A store of directories has no such objects.
            Ok(_) | Err(BucketError::NotFound(_)) => Ok(()),
            Err(error) => Err(self.objects.failures.report(&error)),
        }
    }
}
