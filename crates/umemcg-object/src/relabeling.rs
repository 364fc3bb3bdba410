//! Replaces the metadata of an object: S3 copies it onto itself, with new metadata.
//!
//! The request has preconditions on the object as source and as destination. So bytes stored
//! meanwhile by another program stay. The new metadata have a mark of their own, to recognise the
//! change after a lost response.

use std::sync::Arc;

use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderName,
    HeaderValue,
};
use object_store::{Attribute, CopyOptions, Error};
use umemcg_vfs::bucket::{BucketError, Expected, Metadata, ObjectInfo};

use crate::asked_bucket::{AskedBucket, Found, Place, strong_etag};
use crate::copy::SOURCE_IF_MATCH;
use crate::metadata::{attributes_of, mark_of};
use crate::refusal::Refusal;
use crate::request_extensions::{Tenant, uncarried};
use crate::request_patch::RequestPatch;
use crate::upload::headers_of;

/// Longest object that S3 copies with one request.
pub(crate) const COPY_BYTES_MAX: u64 = 5 << 30;

const DIRECTIVE: HeaderName = HeaderName::from_static("x-amz-metadata-directive");
const STORAGE_CLASS: HeaderName = HeaderName::from_static("x-amz-storage-class");
const PREFIX: &str = "x-amz-meta-";

/// See the module text.
pub(crate) struct Relabeling<'a> {
    pub(crate) asked: &'a Arc<AskedBucket>,
    pub(crate) key: &'a str,
    pub(crate) place: Place,
    /// The version whose metadata to replace.
    pub(crate) info: &'a ObjectInfo,
    /// With an upload mark.
    pub(crate) metadata: &'a Metadata,
}

impl Relabeling<'_> {
    pub(crate) fn run(&self) -> Result<ObjectInfo, BucketError> {
        let asked = self.asked;
        attributes_of(self.metadata).ok_or_else(|| self.no_header())?;
        // Some stores ignore the preconditions.
        let before = asked.find(self.key, &self.place)?;
        if !before.info.is_same(self.info) {
            return Err(asked.changed("COPY", self.key, Some(&before)));
        }
        match self.copy(self.patch(&before, true)?) {
            // Others do not support them.
            Err(refusal) if refusal.is_unknown_to_store() => Ok(self.copy(self.patch(&before, false)?)?),
            copied => Ok(copied?),
        }
    }

    fn copy(&self, patch: RequestPatch) -> Result<ObjectInfo, Refusal> {
        let (asked, path) = (self.asked, &self.place.path);
        let copied = asked.store.objects.copy_opts(path, path, CopyOptions::default());
        let extensions = Tenant::current().extensions_with(patch);
        let copied = asked.runtime.block_on(uncarried(extensions, copied));
        let found = match &copied {
            Ok(()) => asked.find_stored("COPY", self.key, &self.place)?,
            Err(error) => match asked.find_any(self.key, &self.place) {
                Ok(Some(found)) => found,
                _ => return Err(Refusal::new(self.failed(error), error)),
            },
        };
        if found.mark() == mark_of(self.metadata) {
            return Ok(found.info);
        }
        Err(match copied {
            Err(error) if found.info.is_same(self.info) => Refusal::new(self.failed(&error), &error),
            // Another program changed the object meanwhile.
            _ => asked.changed("COPY", self.key, Some(&found)).into(),
        })
    }

    /// Returns the headers. A copy loses each header not given anew, such as `Content-Encoding`.
    fn patch(&self, before: &Found, is_conditional: bool) -> Result<RequestPatch, BucketError> {
        let mut headers = Vec::new();
        if is_conditional {
            headers = headers_of(&Expected::Same(self.info.clone()));
            let etag = strong_etag(self.info).and_then(|etag| HeaderValue::from_str(etag).ok());
            headers.extend(etag.map(|etag| (SOURCE_IF_MATCH, etag)));
        }
        headers.push((DIRECTIVE, HeaderValue::from_static("REPLACE")));
        for (attribute, value) in &before.attributes {
            let name = match attribute {
                Attribute::ContentDisposition => CONTENT_DISPOSITION,
                Attribute::ContentEncoding => CONTENT_ENCODING,
                Attribute::ContentLanguage => CONTENT_LANGUAGE,
                Attribute::ContentType => CONTENT_TYPE,
                Attribute::CacheControl => CACHE_CONTROL,
                Attribute::StorageClass => STORAGE_CLASS,
                _ => continue,
            };
            headers.push((name, HeaderValue::from_str(value).map_err(|_| self.no_header())?));
        }
        // The headers (names with a colon) are handled above.
        for (name, value) in self.metadata.iter().filter(|(name, _)| !name.starts_with(':')) {
            let name = HeaderName::try_from(format!("{PREFIX}{name}")).map_err(|_| self.no_header())?;
            headers.push((name, HeaderValue::from_str(value).map_err(|_| self.no_header())?));
        }
        Ok(RequestPatch { headers, ..RequestPatch::default() })
    }

    fn no_header(&self) -> BucketError {
        let url = &self.asked.url;
        BucketError::Source(format!("COPY of {:?} in {url}: metadata that no header can have", self.key))
    }

    fn failed(&self, error: &Error) -> BucketError {
        match self.asked.failed("COPY", self.key, error) {
            // The object has not changed; the store refuses for another reason.
            BucketError::Changed(text) => BucketError::Unavailable(text),
            failed => failed,
        }
    }
}
