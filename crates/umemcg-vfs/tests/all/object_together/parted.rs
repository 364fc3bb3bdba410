//! An upload in parts to the bucket of the tests: its beginning, its parts and its end fail as
//! other requests do.

use std::sync::{Arc, Mutex};

use umemcg_vfs::bucket::{BucketError, ObjectInfo, PartBytes, PartEnd, PartedUpload};

use crate::object_together::bucket::FaultyBucket;
use crate::object_together::lock;

/// See the module text.
#[derive(Debug)]
pub struct FaultyUpload {
    bucket: Arc<FaultyBucket>,
    key: String,
    is_conditional: bool,
    bytes: Mutex<Vec<u8>>,
    of: Arc<dyn PartedUpload>,
}

impl FaultyUpload {
    pub fn new(
        bucket: Arc<FaultyBucket>,
        (key, is_conditional): (&str, bool),
        of: Arc<dyn PartedUpload>,
    ) -> Self {
        Self { bucket, key: key.to_owned(), is_conditional, bytes: Mutex::default(), of }
    }
}

impl PartedUpload for FaultyUpload {
    fn begin_part(&self, bytes: PartBytes, end: PartEnd) {
        let mut part = vec![0; bytes.len()];
        assert!(bytes.copy_to(0, &mut part));
        lock(&self.bytes).extend(part);
        let Some(error) = self.bucket.refuses_part(&self.key) else { return self.of.begin_part(bytes, end) };
        std::thread::spawn(move || {
            drop(bytes);
            end.tell(Err(error));
        });
    }

    fn complete(&self) -> Result<ObjectInfo, BucketError> {
        let bytes = lock(&self.bytes).clone();
        self.bucket.store(&self.key, (self.is_conditional, &bytes), || self.of.complete())
    }

    fn abort(&self) -> Result<(), BucketError> {
        self.bucket.change(&self.key, false, || self.of.abort())
    }
}
