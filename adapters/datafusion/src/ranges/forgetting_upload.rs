//! [`ForgettingUpload`]: an upload that invalidates the object's known version.

use std::fmt;

use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

/// Wraps a multipart upload; calls `forget` before and after the object appears.
pub(super) struct ForgettingUpload<F> {
    pub(super) inner: Box<dyn MultipartUpload>,
    pub(super) forget: F,
}

#[async_trait]
impl<F: Fn() + Send + Sync> MultipartUpload for ForgettingUpload<F> {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        (self.forget)();
        let result = self.inner.complete().await;
        (self.forget)();
        result
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

impl<F> fmt::Debug for ForgettingUpload<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForgettingUpload").field("inner", &self.inner).finish_non_exhaustive()
    }
}
