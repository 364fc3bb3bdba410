//! A prefix of a bucket, accessed through the crate `object_store`.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::Handle;
use umemcg_vfs::bucket::{
    Bucket, BucketError, BucketFigures, Expected, ListedName, ListedPart, Metadata, ObjectBody, ObjectInfo,
    ObjectSource, PartedUpload, StoreTraffic, UNKNOWN_UPLOAD, UploadNote,
};
use umemcg_vfs::volume::StoreId;

use crate::asked_bucket::{AskedBucket, Found, info_of};
use crate::copy::Copy;
use crate::deletion::Deletion;
use crate::http_layer::RequestCounts;
use crate::local_directory::LocalDirectory;
use crate::metadata::marked;
use crate::parted_upload::StoreUpload;
use crate::relabeling::{COPY_BYTES_MAX, Relabeling};
use crate::request_extensions::Tenant;
use crate::store::Store;
use crate::upload::{Upload, upload_bytes};

/// See the module text.
pub struct StoreBucket {
    asked: Arc<AskedBucket>,
}

impl fmt::Debug for StoreBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBucket")
            .field("url", &self.asked.url)
            .field("endpoint", &self.asked.endpoint)
            .finish()
    }
}

impl StoreBucket {
    pub(crate) fn new(
        store: Store,
        mut prefix: String,
        (url, endpoint): (String, Option<String>),
        counts: Arc<RequestCounts>,
        runtime: Handle,
        part_bytes: u64,
    ) -> Self {
        if !prefix.is_empty() && !prefix.ends_with('/') {
            prefix.push('/');
        }
        let asked = AskedBucket {
            store,
            prefix,
            url,
            endpoint,
            counts,
            runtime,
            part_bytes,
            has_plain_deletes: AtomicBool::new(false),
        };
        Self { asked: Arc::new(asked) }
    }

    /// Wraps a program's own store as a bucket, with multipart uploads in parts of `part_bytes`,
    /// for tests.
    ///
    /// # Errors
    /// The system's, when the threads for stores cannot be started.
    pub fn of_store(
        store: impl ObjectStore,
        url: &str,
        prefix: &str,
        part_bytes: u64,
    ) -> std::io::Result<Self> {
        let runtime = crate::runtime::runtime()?;
        let store = Store::plain(Arc::new(store));
        let place = (url.to_owned(), None);
        Ok(Self::new(store, prefix.to_owned(), place, Arc::default(), runtime, part_bytes))
    }
}

impl StoreBucket {
    /// Returns the entry of the object whose key is the prefix.
    fn own_object(&self, prefix: &str) -> Result<ListedName, BucketError> {
        let found = self.asked.find_stored("LIST", prefix, &self.asked.place(prefix)?)?;
        let name = prefix.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(ListedName { name, object: Some(ObjectInfo { metadata: None, ..found.info }) })
    }

    /// As [`AskedBucket::find_for_sure`].
    fn find_for_sure(
        &self,
        key: &str,
        is_believed: impl Fn(&Found) -> bool,
    ) -> Result<Option<ObjectInfo>, BucketError> {
        match self.asked.place(key) {
            Ok(place) if self.asked.store.lists.is_some() => {
                Ok(self.asked.find_for_sure((key, &place), is_believed)?.map(|found| found.info))
            }
            // There is no gateway in between, or the store has no objects for directories.
            _ => match self.head(key) {
                Ok(info) => Ok(Some(info)),
                Err(BucketError::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            },
        }
    }
}

impl Bucket for StoreBucket {
    fn url(&self) -> &str {
        &self.asked.url
    }

    fn endpoint(&self) -> Option<&str> {
        self.asked.endpoint.as_deref()
    }

    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        if let Some(directory) = LocalDirectory::of(&self.asked, key)? {
            return directory.head();
        }
        if key.ends_with('/') && self.asked.store.last_slash.is_none() {
            // The store has no objects for directories.
            return Err(BucketError::NotFound(format!("{}: {key:?}", self.asked.url)));
        }
        self.asked.find(key, &self.asked.place(key)?).map(|found| found.info)
    }

    fn knows_absence(&self) -> bool {
        self.asked.store.lists.is_none()
    }

    fn find(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        self.find_for_sure(key, |_| true)
    }

    fn find_confirmed(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        self.find_for_sure(key, |_| false)
    }

    fn list(&self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, BucketError> {
        let whole = format!("{}{prefix}", self.asked.prefix);
        let directory_len = whole.rfind('/').map_or(0, |at| at + 1);
        let part = self.asked.part(Tenant::current(), &whole, from, max);
        let (result, next, mut hidden) = self.asked.in_time("LIST", prefix, part)?;
        // Empty for the directory's own object: `object_store` drops its slash.
        let name_of = |path: &Path| path.as_ref().get(directory_len..).unwrap_or_default().to_owned();
        let objects = result
            .objects
            .iter()
            .map(|meta| ListedName { name: name_of(&meta.location), object: Some(info_of(meta)) });
        let prefixes =
            result.common_prefixes.iter().map(|path| ListedName { name: name_of(path), object: None });
        // The object whose key is the prefix, if `object_store` leaves it out.
        let nr_hidden = hidden.len();
        hidden.retain(|key| *key != whole);
        let has_own = hidden.len() < nr_hidden && !prefix.is_empty();
        let own = if has_own { Some(self.own_object(prefix)?) } else { None };
        let mut names: Vec<_> = own.into_iter().chain(objects).chain(prefixes).collect();
        // Sorted by key; a directory's key ends with a slash.
        let key = |listed: &ListedName| listed.name.clone() + if listed.object.is_none() { "/" } else { "" };
        names.sort_by_cached_key(key);
        let hidden = hidden.into_iter().map(|key| match key.strip_prefix(&self.asked.prefix) {
            Some(below) => below.to_owned(),
            None => key,
        });
        Ok(ListedPart { names, hidden: hidden.collect(), next })
    }

    fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError> {
        self.asked.runtime.block_on(self.asked.read(Tenant::current(), key, info, range, take))
    }

    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, mut body: Box<dyn ObjectBody>) {
        let (asked, key, info) = (Arc::clone(&self.asked), key.to_owned(), info.clone());
        let tenant = Tenant::current();
        drop(self.asked.runtime.spawn(async move {
            let result = asked.read(tenant, &key, &info, range, &mut |bytes| body.take(bytes)).await;
            body.end(result);
        }));
    }

    fn upload_bytes(&self, size: u64) -> u64 {
        upload_bytes(size, self.asked.part_bytes)
    }

    fn upload(
        &self,
        key: &str,
        source: &dyn ObjectSource,
        metadata: &Metadata,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        if let Some(directory) = LocalDirectory::of(&self.asked, key)? {
            return directory.make(expected);
        }
        Upload::new(&self.asked, key, source, metadata, expected)?.run()
    }

    fn part_bytes(&self) -> u64 {
        self.asked.part_bytes
    }

    fn begin_upload(
        &self,
        key: &str,
        metadata: &Metadata,
        expected: &Expected,
        note: Arc<dyn UploadNote>,
    ) -> Result<Arc<dyn PartedUpload>, BucketError> {
        Ok(Arc::new(StoreUpload::begin(&self.asked, key, (metadata, expected), note)?))
    }

    fn abort_upload(&self, key: &str, upload: &str) -> Result<(), BucketError> {
        let place = self.asked.place(key)?;
        let Some(store) = &self.asked.store.parts else { return Ok(()) };
        let uploads =
            if upload == UNKNOWN_UPLOAD { self.asked.uploads(key, &place)? } else { vec![upload.to_owned()] };
        uploads.iter().try_for_each(|upload| {
            let ended = self.asked.abort(Tenant::current(), store, &place.path, upload);
            self.asked.in_time("DELETE of an upload", key, ended).map_err(|error| match error {
                BucketError::NotFound(text) => BucketError::Unavailable(text),
                error => error,
            })
        })
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        if let Some(directory) = LocalDirectory::of(&self.asked, key)? {
            return directory.remove();
        }
        Deletion { asked: &self.asked, key, place: self.asked.place(key)?, info: None }.run()
    }

    fn delete_version(&self, key: &str, info: &ObjectInfo) -> Result<(), BucketError> {
        if let Some(directory) = LocalDirectory::of(&self.asked, key)? {
            return directory.remove();
        }
        Deletion { asked: &self.asked, key, place: self.asked.place(key)?, info: Some(info) }.run()
    }

    fn copy(
        &self,
        from: &str,
        info: &ObjectInfo,
        to: &str,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        if let Some(directory) = LocalDirectory::of(&self.asked, to)? {
            return directory.make(expected);
        }
        let (from, to) = ((from, self.asked.place(from)?), (to, self.asked.place(to)?));
        Copy { asked: &self.asked, from, info, to, expected }.run()
    }

    fn keeps_metadata(&self) -> bool {
        self.asked.store.keeps_metadata
    }

    fn replaces_metadata(&self, size: u64) -> bool {
        self.asked.store.takes_conditions && size <= COPY_BYTES_MAX
    }

    fn replace_metadata(
        &self,
        key: &str,
        info: &ObjectInfo,
        metadata: &Metadata,
    ) -> Result<ObjectInfo, BucketError> {
        let place = self.asked.place(key)?;
        Relabeling { asked: &self.asked, key, place, info, metadata: &marked(metadata) }.run()
    }

    fn figures(&self) -> BucketFigures {
        self.asked.counts.figures()
    }

    fn source_id(&self) -> Option<StoreId> {
        Some(self.asked.counts.traffic.id())
    }

    fn traffic(&self) -> Option<StoreTraffic> {
        Some(self.asked.counts.traffic.figures()).filter(|traffic| !traffic.latencies.is_empty())
    }

    fn trouble(&self) -> Option<String> {
        self.asked.counts.trouble()
    }
}
