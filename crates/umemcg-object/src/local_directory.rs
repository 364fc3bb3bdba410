//! Local directories in place of objects with a trailing slash in their keys: a local file system
//! has no such files. They have no metadata. Removing a nonempty directory leaves it in place, as
//! removing such an object would leave the keys below it.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::Attributes;
use umemcg_vfs::Timestamp;
use umemcg_vfs::bucket::{BucketError, Expected, ObjectInfo};

use crate::asked_bucket::{AskedBucket, Found};

/// See the module text.
pub(crate) struct LocalDirectory<'a> {
    asked: &'a AskedBucket,
    key: &'a str,
    path: PathBuf,
}

impl<'a> LocalDirectory<'a> {
    /// Returns the directory of a key; `None` if it is the key of an object.
    pub(crate) fn of(asked: &'a AskedBucket, key: &'a str) -> Result<Option<Self>, BucketError> {
        let Some(store) = asked.store.local.as_ref().filter(|_| key.ends_with('/')) else { return Ok(None) };
        let path = asked.path(key)?;
        let path = store.path_to_filesystem(&path).map_err(|error| asked.failed("HEAD", key, &error))?;
        Ok(Some(Self { asked, key, path }))
    }

    pub(crate) fn head(&self) -> Result<ObjectInfo, BucketError> {
        match self.find()? {
            Some(found) => Ok(found.info),
            None => Err(self.failed("HEAD", &ErrorKind::NotFound.into())),
        }
    }

    fn find(&self) -> Result<Option<Found>, BucketError> {
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => {
                Ok(Some(Found { info: info_of(&metadata), version: None, attributes: Attributes::new() }))
            }
            Ok(_) => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(self.failed("HEAD", &error)),
        }
    }

    pub(crate) fn make(&self, expected: &Expected) -> Result<ObjectInfo, BucketError> {
        let there = self.find()?;
        if !expected.is_met_by(there.as_ref().map(|found| &found.info)) {
            return Err(self.asked.changed("PUT", self.key, there.as_ref()));
        }
        if let Some(found) = there {
            return Ok(found.info);
        }
        self.make_durably().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => self.asked.changed("PUT", self.key, None),
            _ => self.failed("PUT", &error),
        })?;
        self.head()
    }

    fn make_durably(&self) -> io::Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        // Each new directory is an entry of its parent, to be synced there.
        let missing: Vec<_> = parent.ancestors().take_while(|path| !path.exists()).collect();
        fs::create_dir_all(parent)?;
        fs::create_dir(&self.path)?;
        for changed in missing.iter().filter_map(|path| path.parent()).chain([parent]) {
            File::open(changed)?.sync_all()?;
        }
        Ok(())
    }

    pub(crate) fn remove(&self) -> Result<(), BucketError> {
        match fs::remove_dir(&self.path) {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                Err(self.failed("DELETE", &error))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> BucketError {
        let text = format!("{what} of {:?} in {}: {error}", self.key, self.asked.url);
        match error.kind() {
            ErrorKind::NotFound => BucketError::NotFound(text),
            ErrorKind::PermissionDenied => BucketError::Denied(text),
            _ => BucketError::Unavailable(text),
        }
    }
}

fn info_of(metadata: &Metadata) -> ObjectInfo {
    ObjectInfo {
        size: 0,
        modified: Timestamp { seconds: metadata.mtime(), nanoseconds: 0 },
        etag: None,
        metadata: Some(Arc::default()),
        attributes: None,
    }
}
