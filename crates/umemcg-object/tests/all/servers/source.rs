//! What is uploaded in tests, with a diary of what was noted.

use std::io;
use std::sync::Mutex;

use umemcg_vfs::bucket::{Bucket, BucketError, ObjectSource};

type Hook = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

pub struct Source {
    pub bytes: Vec<u8>,
    /// What has been noted.
    notes: Mutex<Vec<Option<String>>>,
    /// Called before bytes from this offset on are read.
    hook: Option<(u64, Hook)>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("size", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Source {
    pub fn of(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), notes: Mutex::default(), hook: None }
    }

    /// Returns a source of so many bytes, which no other seed gives.
    pub fn pattern(size: usize, seed: u8) -> Self {
        Self::of((0..size).map(|at| (at / 5) as u8 ^ (at >> 16) as u8 ^ seed).collect::<Vec<_>>())
    }

    pub fn calling(self, offset: u64, hook: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { hook: Some((offset, Box::new(hook))), ..self }
    }

    /// Returns for each note whether an upload began, in order.
    pub fn notes(&self) -> Vec<bool> {
        self.notes.lock().unwrap().iter().map(Option::is_some).collect()
    }

    /// Returns the upload that was noted last and is not over.
    pub fn open_upload(&self) -> Option<String> {
        self.notes.lock().unwrap().last().cloned().flatten()
    }
}

impl ObjectSource for Source {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if let Some((from, hook)) = &self.hook
            && offset + into.len() as u64 > *from
        {
            hook()?;
        }
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn note_upload(&self, upload: Option<&str>) -> io::Result<()> {
        self.notes.lock().unwrap().push(upload.map(str::to_owned));
        Ok(())
    }
}

/// Returns the bytes of an object.
pub fn bytes_of(bucket: &dyn Bucket, key: &str) -> Result<Vec<u8>, BucketError> {
    let info = bucket.head(key)?;
    let mut bytes = Vec::new();
    bucket.read(key, &info, 0..info.size, &mut |part| bytes.extend_from_slice(part)).map(|()| bytes)
}
