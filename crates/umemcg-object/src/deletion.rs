//! Deletes one version of an object.
//!
//! 1. A request to S3 names the version (`If-Match`). A server may ignore this precondition; it
//!    then removes any version. A server may also refuse it, and accept the request without it.
//!    From then on requests to it are unconditional.
//! 2. A failed request may have deleted the object: after a lost response the request is sent
//!    again, and fails because the object is gone. So a HEAD decides. If it finds no object, and no
//!    listing has the object, the object is gone.
//! 3. A success response that no store sends (`is_of_deletion`) arrives here as an object not
//!    found.
//! 4. A conflict with another change decides nothing: the request is sent again, with its
//!    precondition.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::ObjectStoreExt;
use umemcg_vfs::bucket::{BucketError, Expected, ObjectInfo};

use crate::asked_bucket::{AskedBucket, Place};
use crate::refusal::Refusal;
use crate::request_extensions::{Tenant, uncarried};
use crate::request_patch::RequestPatch;
use crate::upload::headers_of;

/// Attempts of a deletion while the store is busy with other changes of the object.
const NR_ROUNDS: u32 = 8;
/// The first pause after such a conflict; each is longer by as much.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// See the module text.
pub(crate) struct Deletion<'a> {
    pub(crate) asked: &'a Arc<AskedBucket>,
    pub(crate) key: &'a str,
    pub(crate) place: Place,
    /// The version; `None`: any version.
    pub(crate) info: Option<&'a ObjectInfo>,
}

impl Deletion<'_> {
    /// Removes the object. A missing object is no error.
    ///
    /// # Errors
    /// [`BucketError::Changed`] for another version; the store's.
    pub(crate) fn run(&self) -> Result<(), BucketError> {
        let asked = self.asked;
        let takes_conditions =
            asked.store.takes_conditions && !asked.has_plain_deletes.load(Ordering::Relaxed);
        let Some(info) = self.info.filter(|_| takes_conditions) else { return self.delete_any() };
        let mut nr_refused = 0;
        for round in 1.. {
            let Err(refusal) = self.delete(Some(info)) else { break };
            let is_unknown = refusal.is_unknown_to_store();
            if !is_unknown && (!matches!(refusal.error, BucketError::Changed(_)) || round == NR_ROUNDS) {
                return Err(refusal.error);
            }
            match asked.find_for_sure((self.key, &self.place), |_| true)? {
                None => break,
                Some(there) if !there.info.is_same(info) => {
                    return Err(asked.changed_for_sure("DELETE", (self.key, &self.place), Some(&there)));
                }
                Some(_) if refusal.is_conflict() => self.pause(round),
                Some(_) if nr_refused == 0 => nr_refused += 1,
                // Refused twice, and a HEAD in between found this version: the store knows no
                // condition, or compares ETags in its own way. No page in its place has answered.
                Some(_) => {
                    self.delete_any()?;
                    asked.has_plain_deletes.fetch_or(is_unknown, Ordering::Relaxed);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes any version. A failed precondition is no valid response to an unconditional request.
    fn delete_any(&self) -> Result<(), BucketError> {
        for round in 1..=NR_ROUNDS {
            match self.delete(None) {
                Err(Refusal { error: BucketError::Changed(_), .. }) => self.pause(round),
                deleted => return Ok(deleted?),
            }
        }
        let text = format!("DELETE of {:?} in {}: refused {NR_ROUNDS} times", self.key, self.asked.url);
        Err(BucketError::Unavailable(text))
    }

    fn pause(&self, round: u32) {
        self.asked.runtime.block_on(async { tokio::time::sleep(round * CONFLICT_PAUSE).await });
    }

    fn delete(&self, info: Option<&ObjectInfo>) -> Result<(), Refusal> {
        let headers = info.map_or_else(Vec::new, |info| headers_of(&Expected::Same(info.clone())));
        let (objects, path) = (&self.asked.store.objects, &self.place.path);
        // A key in a request body cannot get its trailing slash.
        let is_deletion = self.asked.store.deletes_in_batches && !self.place.last_slash.is_empty();
        let patch = RequestPatch { headers, is_deletion, ..self.place.patch() };
        let extensions = Tenant::current().extensions_with(patch);
        let deleted =
            async { if is_deletion { objects.copy(path, path).await } else { objects.delete(path).await } };
        match self.asked.answer("DELETE", self.key, uncarried(extensions, deleted)) {
            Err(Refusal { error: BucketError::NotFound(_), .. }) => {
                Ok(self.asked.confirm((self.key, &self.place), None)?)
            }
            deleted => deleted,
        }
    }
}
