//! One upload of a draft, by the thread that holds its turn, and the recognition of objects stored
//! by uploads whose answers were lost.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::assert_no_locks_held;

use super::draft::{Draft, Upload};
use super::draft_progress::Before;
use super::draft_source::DraftSource;
use super::objects::Objects;
use super::upload_room::UploadRoom;
use crate::bucket::{BucketError, Expected, ObjectInfo, UPLOAD_MARK};

/// Why an upload failed.
pub(super) enum UploadError {
    /// There is another version in the store.
    Changed(BucketError),
    /// It may succeed the next time.
    Failed(Errno),
}

impl From<Errno> for UploadError {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

/// See the module text.
pub(super) struct DraftUpload<'a> {
    pub(super) objects: &'a Objects,
    pub(super) draft: &'a Draft,
    /// The group that pays.
    pub(super) group: &'a Arc<Group>,
    /// The deadline of waits for room.
    pub(super) until: Instant,
}

impl DraftUpload<'_> {
    /// Stores a draft as `key`, in place of the `expected` object, or of its base version. May
    /// sleep for memory, the disk and the store.
    pub(super) fn run(
        &self,
        upload: &Upload,
        (key, expected): (&str, Option<Expected>),
    ) -> Result<ObjectInfo, UploadError> {
        assert_no_locks_held("an upload");
        let (objects, draft) = (self.objects, self.draft);
        // Before the record names another key.
        end_noted_upload(objects, draft)?;
        let len = draft.write_out()?;
        let bucket = &objects.bucket;
        let (effort, bytes) = (objects.charge_effort(), bucket.upload_bytes(len));
        let payer = (self.group, bytes);
        let _charge = UploadRoom::of_process().take_until(self.until, effort, &objects.engine, payer)?;
        let source = DraftSource::new(draft, key, len)?;
        let mut metadata = upload.labels.to_metadata();
        metadata.push((UPLOAD_MARK.to_owned(), format!("{}{}", draft.mark(), upload.nr_changes)));
        let of_base = || upload.before.base.clone().map_or(Expected::Absent, Expected::Same);
        let expected = expected.unwrap_or_else(of_base);
        let changed = match bucket.upload(key, &source, &metadata, &expected) {
            Err(error @ BucketError::Changed(_)) => error,
            result => return result.map_err(|error| self.failed(&error)),
        };
        // An upload of this draft whose answer was lost may have changed it.
        let there = bucket.find_confirmed(key).map_err(|error| self.failed(&error))?;
        let number_of = |there: &ObjectInfo| upload.before.number_of_unknown(draft.mark(), there);
        match (there.as_ref().and_then(number_of), there) {
            // It has all of these changes.
            (Some(nr), Some(there)) if nr >= upload.nr_changes => Ok(there),
            (Some(_), Some(there)) => {
                draft.rebase(&there);
                let again = bucket.upload(key, &source, &metadata, &Expected::Same(there));
                again.map_err(|error| match error {
                    BucketError::Changed(_) => UploadError::Changed(error),
                    _ => self.failed(&error),
                })
            }
            // No other version is there: of two changes at once a store may refuse both.
            (_, there) if expected.is_met_by(there.as_ref()) => {
                Err(self.failed(&BucketError::Unavailable(changed.to_string())))
            }
            _ => Err(UploadError::Changed(changed)),
        }
    }

    fn failed(&self, error: &BucketError) -> UploadError {
        UploadError::Failed(self.objects.failures.report(error))
    }
}

/// Returns whether the object of a key is the base version of a draft, or comes from an upload of
/// the draft whose answer was lost. May sleep for the store.
pub(super) fn has_own(objects: &Objects, draft: &Draft, before: &Before, key: &str) -> Result<bool, Errno> {
    let found = objects.bucket.find(key).map_err(|error| objects.failures.report(&error))?;
    let is_own = |there: ObjectInfo| {
        let is_base = before.base.as_ref().is_some_and(|base| base.is_same(&there));
        is_base || before.number_of_unknown(draft.mark(), &there).is_some()
    };
    Ok(found.is_some_and(is_own))
}

/// Aborts a multipart upload that could not be aborted when it failed. May sleep for the store.
pub(super) fn end_noted_upload(objects: &Objects, draft: &Draft) -> Result<(), Errno> {
    let Some((key, upload)) = draft.noted_upload() else { return Ok(()) };
    if let Err(error) = objects.bucket.abort_upload(&key, &upload) {
        let errno = objects.failures.report(&error);
        // A store that refuses to abort it must still take files.
        if !matches!(error, BucketError::Denied(_)) {
            return Err(errno);
        }
    }
    draft.forget_upload();
    Ok(())
}
