//! Copies an object within its bucket.
//!
//! With S3, preconditions on source and destination go with the request. With other stores a HEAD
//! before and after the copy takes their place. A copy has the metadata of its source, including
//! the upload mark (`metadata`); the mark identifies the copy after a lost response. A copy with a
//! mark has succeeded once a HEAD shows it. A copy without a mark must be in a listing, too. A
//! directory's object has only metadata, and is stored anew: SeaweedFS does not copy such objects.

use std::io;
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};
use object_store::{CopyMode, CopyOptions, Error};
use umemcg_vfs::bucket::{BucketError, Expected, ObjectInfo, ObjectSource};

use crate::asked_bucket::{AskedBucket, Found, Place, strong_etag};
use crate::metadata::mark_of;
use crate::refusal::Refusal;
use crate::request_extensions::{Tenant, uncarried};
use crate::request_patch::RequestPatch;
use crate::upload::{Upload, headers_of};

/// Attempts to overwrite a destination while other programs replace it.
const NR_ROUNDS: usize = 3;

pub(crate) const SOURCE_IF_MATCH: HeaderName = HeaderName::from_static("x-amz-copy-source-if-match");

/// See the module text.
pub(crate) struct Copy<'a> {
    pub(crate) asked: &'a Arc<AskedBucket>,
    pub(crate) from: (&'a str, Place),
    /// The version to copy.
    pub(crate) info: &'a ObjectInfo,
    pub(crate) to: (&'a str, Place),
    pub(crate) expected: &'a Expected,
}

impl Copy<'_> {
    pub(crate) fn run(&self) -> Result<ObjectInfo, BucketError> {
        match self.try_to() {
            Err(BucketError::NotFound(text)) => {
                self.asked.confirm((self.from.0, &self.from.1), None)?;
                Err(BucketError::NotFound(text))
            }
            done => done,
        }
    }

    /// [`BucketError::NotFound`] when the store reports a missing source.
    fn try_to(&self) -> Result<ObjectInfo, BucketError> {
        let asked = self.asked;
        if !self.from.1.last_slash.is_empty() {
            return self.store_anew();
        }
        if !asked.store.takes_conditions {
            let _ = self.check_source()?;
        }
        let mut round = 1;
        loop {
            let there = asked.find_any(self.to.0, &self.to.1)?;
            if !self.expected.is_met_by(there.as_ref().map(|found| &found.info)) {
                return Err(asked.changed_for_sure("COPY", (self.to.0, &self.to.1), there.as_ref()));
            }
            // The precondition is on the present destination: a request with a lost response may
            // take effect late, and must not replace a later version.
            let before = there.map(|there| there.info);
            let expected = before.clone().map_or(Expected::Absent, Expected::Same);
            match self.copy(&expected, before.as_ref()) {
                // The source may have changed instead.
                Err(Refusal { error: BucketError::Changed(_), .. })
                    if *self.expected == Expected::Anything
                        && round < NR_ROUNDS
                        && self.check_source().is_ok() =>
                {
                    round += 1;
                }
                Err(refusal) if *self.expected == Expected::Anything && refusal.is_unknown_to_store() => {
                    return Ok(self.copy(&Expected::Anything, before.as_ref())?);
                }
                copied => return Ok(copied?),
            }
        }
    }

    /// Copies over the destination `before`, and verifies the copy: a rename removes the source
    /// next.
    fn copy(&self, expected: &Expected, before: Option<&ObjectInfo>) -> Result<ObjectInfo, Refusal> {
        let (asked, (to, to_place)) = (self.asked, (self.to.0, &self.to.1));
        // With `CopyMode::Create` `object_store` would copy in parts on S3; the precondition goes
        // with the patch.
        let mode = match self.expected {
            Expected::Absent if !asked.store.takes_conditions => CopyMode::Create,
            _ => CopyMode::Overwrite,
        };
        let options = CopyOptions { mode, ..CopyOptions::default() };
        let copied = asked.store.objects.copy_opts(&self.from.1.path, &to_place.path, options);
        let extensions = Tenant::current().extensions_with(self.patch(expected));
        if let Err(error) = asked.runtime.block_on(uncarried(extensions, copied)) {
            self.judge(&error)?;
        }
        let found = asked.find_stored("COPY", to, to_place)?;
        let is_new = !before.is_some_and(|before| before.is_same(&found.info));
        let mut is_copy = is_new && found.info.etag.is_some() && found.info.is_same(self.info);
        if !is_copy {
            // Some stores ignore the precondition on the source, and give the copy a new ETag.
            is_copy = is_copy_of(&self.check_source()?, before, &found);
        }
        if is_copy && self.is_confirmed(&found, before)? {
            return Ok(found.info);
        }
        let text = format!("COPY of {:?} in {} to {to:?}: another object is there", self.from.0, asked.url);
        Err(BucketError::Unavailable(text).into())
    }

    /// Returns whether a copy over the destination `before` has a mark, or a listing shows it: a
    /// page in place of the store may have an ETag and the length of the copy.
    fn is_confirmed(&self, found: &Found, before: Option<&ObjectInfo>) -> Result<bool, BucketError> {
        // Some gateways list other ETags. The length is enough, unless it is that of `before`.
        let may_differ = before.is_none_or(|before| before.size != found.info.size);
        let to = (self.to.0, &self.to.1);
        Ok(found.mark().is_some() || self.asked.is_listed_as(Some(found), to, may_differ)?)
    }

    fn store_anew(&self) -> Result<ObjectInfo, BucketError> {
        let metadata = self.check_source()?.metadata.unwrap_or_default();
        if self.info.size > 0 {
            let text = format!("COPY of {:?} in {}: a directory with content", self.from.0, self.asked.url);
            return Err(BucketError::Denied(text));
        }
        Upload::new(self.asked, self.to.0, &Nothing, &metadata, self.expected)?.run()
    }

    fn patch(&self, expected: &Expected) -> RequestPatch {
        let mut headers = Vec::new();
        if self.asked.store.takes_conditions {
            headers = headers_of(expected);
            let etag = strong_etag(self.info).and_then(|etag| HeaderValue::from_str(etag).ok());
            headers.extend(etag.map(|etag| (SOURCE_IF_MATCH, etag)));
        }
        RequestPatch { after_key: self.to.1.last_slash, headers, ..RequestPatch::default() }
    }

    fn check_source(&self) -> Result<ObjectInfo, BucketError> {
        let (from, place) = (self.from.0, &self.from.1);
        let found = self.asked.find(from, place)?;
        if found.info.is_same(self.info) {
            Ok(found.info)
        } else {
            Err(self.asked.changed("COPY", from, Some(&found)))
        }
    }

    /// Judges a failure: the copy may exist nevertheless.
    fn judge(&self, error: &Error) -> Result<(), Refusal> {
        let failed = || Refusal::new(self.asked.failed("COPY", self.from.0, error), error);
        if matches!(
            error,
            Error::NotFound { .. } | Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
        ) {
            return Err(failed());
        }
        let from = self.asked.find_any(self.from.0, &self.from.1).ok().flatten();
        let to = self.asked.find_any(self.to.0, &self.to.1).ok().flatten();
        let (Some(from), Some(to)) = (from, to) else { return Err(failed()) };
        let is_copy = match (from.mark(), to.mark()) {
            (Some(from), Some(to)) => from == to,
            _ => from.info.etag.is_some() && from.info.etag == to.info.etag,
        };
        if is_copy && from.info.is_same(self.info) && from.info.size == to.info.size {
            Ok(())
        } else {
            Err(failed())
        }
    }
}

/// Returns whether an object may be the copy and not the destination `before`. A mark must be that
/// of the source. Without a mark, the copy has the length of the source, and either its ETag or an
/// ETag other than the one before.
fn is_copy_of(source: &ObjectInfo, before: Option<&ObjectInfo>, found: &Found) -> bool {
    let mark = source.metadata.as_deref().and_then(mark_of);
    let is_copy = match found.mark() {
        Some(theirs) => mark == Some(theirs),
        None => found.info.is_same(source) || !before.is_some_and(|before| before.is_same(&found.info)),
    };
    is_copy && source.size == found.info.size
}

/// An object without content.
#[derive(Debug)]
struct Nothing;

impl ObjectSource for Nothing {
    fn size(&self) -> u64 {
        0
    }

    fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn note_upload(&self, _: Option<&str>) -> io::Result<()> {
        Ok(())
    }
}
