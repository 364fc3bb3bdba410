//! An object that is removed in one version.
//!
//! S3 is told which (`If-Match`). A server that takes no notice of it removes whatever is there,
//! and one that refuses it is asked without from then on. A request whose answer was lost is sent
//! again, and then fails because the object is gone: so a failure is judged by a HEAD.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use object_store::ObjectStoreExt;
use umemcg_vfs::object::{BucketError, Expected, ObjectInfo};

use crate::amendment::{AMENDMENT, Amendment};
use crate::asked_bucket::{AskedBucket, Place};
use crate::upload::headers_of;

/// See the module text.
pub(crate) struct Deletion<'a> {
    pub(crate) asked: &'a Arc<AskedBucket>,
    pub(crate) key: &'a str,
    pub(crate) place: Place,
    /// The version; `None`: whatever is there.
    pub(crate) info: Option<&'a ObjectInfo>,
}

impl Deletion<'_> {
    /// Removes the object. One that is not there is no error.
    ///
    /// # Errors
    /// [`BucketError::Changed`] for another version; the store's.
    pub(crate) fn run(&self) -> Result<(), BucketError> {
        let asked = self.asked;
        let takes_conditions =
            asked.store.takes_conditions && !asked.has_plain_deletes.load(Ordering::Relaxed);
        let Some(info) = self.info.filter(|_| takes_conditions) else { return self.delete(None) };
        match self.delete(Some(info)) {
            Err(BucketError::Changed(_)) => match asked.find_any(self.key, &self.place)? {
                None => Ok(()),
                // The store compares in a way of its own.
                Some(there) if there.info.is_same(info) => self.delete(None),
                Some(there) => Err(asked.changed("DELETE", self.key, Some(&there))),
            },
            Err(error) if AskedBucket::is_unknown_to_store(&error) => {
                asked.has_plain_deletes.store(true, Ordering::Relaxed);
                self.delete(None)
            }
            deleted => deleted,
        }
    }

    fn delete(&self, info: Option<&ObjectInfo>) -> Result<(), BucketError> {
        let headers = info.map_or_else(Vec::new, |info| headers_of(&Expected::Same(info.clone())));
        let amendment = Amendment { headers, ..self.place.amendment() };
        let deleted = self.asked.store.objects.delete(&self.place.path);
        match self.asked.in_time("DELETE", self.key, AMENDMENT.scope(amendment, deleted)) {
            Err(BucketError::NotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }
}
