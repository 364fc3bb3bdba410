//! A volume of objects that can be written to, above a bucket in memory.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::{Engine, EngineConfig, Group};
use umemcg_vfs::bucket::StagedFile;
use umemcg_vfs::object::{Freshness, ObjectConfig, StagingConfig};
use umemcg_vfs::{
    Attr, Attributes, Caller, Create, Entry, Lookup, Names, NodeId, OFlags, ObjectVolume, Open, RenameFlags,
    SetAttr, VfsError, Volume, VolumeError, VolumeFile, VolumeKind,
};

use super::memory_bucket::MemoryBucket;

const ROOT: NodeId = NodeId::ROOT;

/// A volume with its staging directory, and a caller.
pub struct World {
    pub volume: Arc<ObjectVolume>,
    pub bucket: Arc<MemoryBucket>,
    pub engine: Arc<Engine>,
    pub me: Caller,
    pub staging: Arc<tempfile::TempDir>,
    pub config: StagingConfig,
}

/// A pause after which no test waits for an upload to be tried again.
const NEVER: Duration = Duration::from_secs(1 << 20);

pub fn errno<T>(result: Result<T, VfsError>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

impl World {
    pub fn new() -> Self {
        Self::with(64 << 20, 64 << 20)
    }

    /// Creates one with a pool and a staging directory of these sizes.
    pub fn with(pool_bytes: u64, max_bytes: u64) -> Self {
        let staging = Arc::new(tempfile::tempdir().unwrap());
        Self::on(Arc::default(), staging, pool_bytes, max_bytes)
    }

    /// Creates one without a staging directory, whose files are written as streams, with a pool of
    /// a size.
    pub fn streamed(pool_bytes: u64) -> Self {
        Self::streamed_on(MemoryBucket::for_streams(), pool_bytes)
    }

    /// As [`streamed`](Self::streamed), on a bucket.
    pub fn streamed_on(bucket: Arc<MemoryBucket>, pool_bytes: u64) -> Self {
        let staging = Arc::new(tempfile::tempdir().unwrap());
        let engine = Engine::new(EngineConfig::new(pool_bytes)).unwrap();
        let group = engine.create_group(engine.root(), OsStr::new("g")).unwrap();
        let config = ObjectConfig { staging: None, streams: true, ..config(&bucket, staging.path(), 0) };
        let volume = open(&engine, &config);
        let me = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 1 };
        let config = staging_config(staging.path(), 0);
        Self { volume, bucket, engine, me, staging, config }
    }

    /// Creates one whose files all have the same attributes, which a listing then has, too.
    pub fn uniform() -> Self {
        let mut w = Self::new();
        let config = ObjectConfig { stores_attributes: false, ..config_with(&w.bucket, w.config.clone()) };
        // The staging directory is locked.
        w.staging = Arc::new(tempfile::tempdir().unwrap());
        let staging = StagingConfig { dir: w.staging.path().to_owned(), ..w.config.clone() };
        w.volume = open(&w.engine, &ObjectConfig { staging: Some(staging), ..config });
        w
    }

    /// Returns the same volume for another tenant.
    pub fn of_group(&self, name: &str) -> Self {
        let group = self.engine.create_group(self.engine.root(), OsStr::new(name)).unwrap();
        let other = self.of_thread(1);
        Self { me: Caller { group, ..other.me.clone() }, ..other }
    }

    pub fn on(
        bucket: Arc<MemoryBucket>,
        staging: Arc<tempfile::TempDir>,
        pool_bytes: u64,
        max_bytes: u64,
    ) -> Self {
        let config = staging_config(staging.path(), max_bytes);
        Self::as_configured(bucket, staging, pool_bytes, config)
    }

    /// Creates one that retries a failed upload after a pause.
    pub fn retrying(retry_pause: Duration) -> Self {
        let staging = Arc::new(tempfile::tempdir().unwrap());
        let config = StagingConfig { retry_pause, ..staging_config(staging.path(), 64 << 20) };
        Self::as_configured(Arc::default(), staging, 64 << 20, config)
    }

    fn as_configured(
        bucket: Arc<MemoryBucket>,
        staging: Arc<tempfile::TempDir>,
        pool_bytes: u64,
        config: StagingConfig,
    ) -> Self {
        let engine = Engine::new(EngineConfig::new(pool_bytes)).unwrap();
        let group = engine.create_group(engine.root(), OsStr::new("g")).unwrap();
        Self::of((engine, group), bucket, staging, config)
    }

    fn of(
        (engine, group): (Arc<Engine>, Arc<Group>),
        bucket: Arc<MemoryBucket>,
        staging: Arc<tempfile::TempDir>,
        config: StagingConfig,
    ) -> Self {
        let config = StagingConfig { dir: staging.path().to_owned(), ..config };
        let volume = open(&engine, &config_with(&bucket, config.clone()));
        let me = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 1 };
        Self { volume, bucket, engine, me, staging, config }
    }

    /// Ends the volume without a word, and opens it again.
    pub fn restart(self) -> Self {
        let Self { volume, bucket, engine, me, staging, config } = self;
        drop(volume);
        // The directory is locked until the flusher has written the last byte to it.
        engine.sync_all(Duration::from_secs(60));
        Self::of((engine, me.group), bucket, staging, config)
    }

    /// Returns the same volume for another thread.
    pub fn of_thread(&self, thread: u32) -> Self {
        let (volume, bucket, engine) =
            (Arc::clone(&self.volume), Arc::clone(&self.bucket), Arc::clone(&self.engine));
        let (me, staging) = (Caller { thread, ..self.me.clone() }, Arc::clone(&self.staging));
        Self { volume, bucket, engine, me, staging, config: self.config.clone() }
    }

    /// Leaves the volume as a killed daemon would, and opens one on a copy of the staging
    /// directory: the lock goes with a process only.
    pub fn restart_elsewhere(self) -> Self {
        self.volume.stop_retries();
        let copy = self.copy_staging();
        let Self { volume, bucket, engine, me, config, .. } = self;
        let pool_bytes = engine.arena().nr_frames() as u64 * 4096;
        std::mem::forget((volume, me));
        Self::as_configured(bucket, copy, pool_bytes, config)
    }

    /// Leaves a volume of streams as a killed daemon would, and opens another of the same bucket.
    pub fn streamed_elsewhere(self) -> Self {
        let Self { volume, bucket, engine, me, .. } = self;
        let pool_bytes = engine.arena().nr_frames() as u64 * 4096;
        std::mem::forget((volume, me));
        Self::streamed_on(bucket, pool_bytes)
    }

    /// Returns a copy of the staging directory.
    fn copy_staging(&self) -> Arc<tempfile::TempDir> {
        let below = std::fs::read_dir(self.staging.path()).unwrap().next().unwrap().unwrap().path();
        let copy = tempfile::tempdir().unwrap();
        let to = copy.path().join(below.file_name().unwrap());
        std::fs::create_dir_all(to.join("lost")).unwrap();
        for entry in std::fs::read_dir(&below).unwrap().map(Result::unwrap).filter(|e| e.path().is_file()) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        Arc::new(copy)
    }

    pub fn group(&self) -> &Arc<Group> {
        &self.me.group
    }

    /// Looks a path up; what it leads through is forgotten.
    pub fn find(&self, path: &str) -> Result<Entry, VfsError> {
        let (mut node, mut found) = (ROOT, None);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let entry = self.volume.lookup(&self.me, node, OsStr::new(name));
            if node != ROOT {
                self.volume.forget(node, 1);
            }
            let entry = entry?;
            (node, found) = (entry.node, Some(entry));
        }
        Ok(found.unwrap())
    }

    /// Calls `act` with the directory and the name of a path.
    pub fn at<R>(&self, path: &str, act: impl FnOnce(NodeId, &OsStr) -> R) -> Result<R, VfsError> {
        match path.rsplit_once('/') {
            None => Ok(act(ROOT, OsStr::new(path))),
            Some((directory, name)) => {
                let entry = self.find(directory)?;
                let result = act(entry.node, OsStr::new(name));
                self.volume.forget(entry.node, 1);
                Ok(result)
            }
        }
    }

    pub fn attr(&self, path: &str) -> Result<Attr, VfsError> {
        let entry = self.find(path)?;
        self.volume.forget(entry.node, 1);
        Ok(entry.attr)
    }

    pub fn create(&self, path: &str) -> Result<Arc<dyn VolumeFile>, VfsError> {
        self.create_with(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    pub fn create_with(&self, path: &str, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let created =
            self.at(path, |parent, name| self.volume.create(&self.me, parent, name, 0o644, flags))?;
        let (entry, file) = created?;
        file.kernel_caching(true);
        self.volume.forget(entry.node, 1);
        Ok(file)
    }

    /// Opens a file as the kernel does: once more from its name if it has become another.
    pub fn open(&self, path: &str, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let open = || {
            let node = self.find(path)?.node;
            let opened = self.volume.open(&self.me, node, flags);
            self.volume.forget(node, 1);
            opened
        };
        let opened = match open() {
            Err(error) if error.errno() == Errno::STALE => open(),
            opened => opened,
        };
        opened.inspect(|file| {
            file.kernel_caching(false);
        })
    }

    /// Closes a file as a program does.
    pub fn close(&self, file: Arc<dyn VolumeFile>) -> Result<(), VfsError> {
        file.flush()
    }

    /// Ends a file as the kernel does for one that no process has any more.
    pub fn release(&self, file: Arc<dyn VolumeFile>) {
        file.closed();
    }

    /// Writes a whole file, as `cp` does.
    pub fn put(&self, path: &str, bytes: &[u8]) -> Result<(), VfsError> {
        let file = self.create_with(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        self.write(&file, 0, bytes)?;
        self.close(file)
    }

    /// Writes as the kernel does, which keeps what is written if there is one that keeps pages.
    pub fn write(&self, file: &Arc<dyn VolumeFile>, offset: u64, bytes: &[u8]) -> Result<(), VfsError> {
        let mut done = 0;
        while done < bytes.len() {
            let (at, part) = (offset + done as u64, &bytes[done..bytes.len().min(done + (128 << 10))]);
            let io = file.begin_kernel_io(at, part.len() as u64, true, self.group());
            io.iter()
                .filter(|io| !io.charge_copy(Some(&self.engine), self.group()))
                .for_each(|io| io.drop_behind());
            done += match file.try_write(self.group(), at, part, false) {
                Some(written) => written,
                None => file.write(self.group(), at, part, false)?,
            };
        }
        Ok(())
    }

    pub fn read(&self, file: &Arc<dyn VolumeFile>) -> Result<Vec<u8>, VfsError> {
        let (mut bytes, len) = (Vec::new(), file.content().len());
        while (bytes.len() as u64) < len {
            let pages = file.read(self.group(), bytes.len() as u64, 128 << 10)?;
            for segment in pages.segments() {
                let mut part = vec![0; usize::from(segment.len)];
                self.engine.arena().copy_out(segment.frame, usize::from(segment.offset), &mut part);
                bytes.extend_from_slice(&part);
            }
        }
        Ok(bytes)
    }

    pub fn get(&self, path: &str) -> Result<Vec<u8>, VfsError> {
        self.read(&self.open(path, OFlags::RDONLY)?)
    }

    pub fn unlink(&self, path: &str) -> Result<(), VfsError> {
        self.at(path, |parent, name| self.volume.unlink(&self.me, parent, name))?.map(drop)
    }

    pub fn mkdir(&self, path: &str) -> Result<(), VfsError> {
        let made = self.at(path, |parent, name| self.volume.mkdir(&self.me, parent, name, 0o755))??;
        self.volume.forget(made.node, 1);
        Ok(())
    }

    pub fn rmdir(&self, path: &str) -> Result<(), VfsError> {
        let entry = self.find(path)?;
        let removed = self.at(path, |parent, name| self.volume.rmdir(&self.me, parent, name));
        self.volume.forget(entry.node, 1);
        removed?
    }

    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<(), VfsError> {
        self.at(from, |parent, name| {
            self.at(to, |new_parent, new_name| {
                self.volume.rename(&self.me, parent, name, new_parent, new_name, flags)
            })
        })??
        .map(drop)
    }

    pub fn set(&self, path: &str, change: &SetAttr) -> Result<Attr, VfsError> {
        let entry = self.find(path)?;
        let changed = self.volume.setattr(&self.me, entry.node, change);
        self.volume.forget(entry.node, 1);
        changed
    }

    /// Returns the names in a directory, with their lengths, which are looked up where they do not
    /// come with the names.
    pub fn names(&self, path: &str) -> Vec<(String, u64)> {
        let entry = (!path.is_empty()).then(|| self.find(path).unwrap());
        let node = entry.map_or(ROOT, |entry| entry.node);
        let directory = self.volume.opendir(&self.me, node).unwrap();
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let (before, from) = (offset, offset);
            let mut sink = |entry: &umemcg_vfs::DirEntry<'_>| {
                if offset == before + 3 {
                    return false;
                }
                offset = entry.next_offset;
                let looked_up = entry.entry;
                if !matches!(entry.name.to_str(), Some("." | "..")) {
                    let len = looked_up.map_or(u64::MAX, |entry| entry.attr.size);
                    names.push((entry.name.to_str().unwrap().to_owned(), len));
                }
                looked_up.inspect(|entry| self.volume.forget(entry.node, 1));
                true
            };
            directory.readdirplus(&self.me, from, &mut sink).unwrap();
            if offset == before {
                break;
            }
        }
        drop(directory);
        for (name, len) in names.iter_mut().filter(|(_, len)| *len == u64::MAX) {
            // Another thread may have removed it meanwhile.
            *len = self.attr(&format!("{path}/{name}")).map_or(u64::MAX, |attr| attr.size);
        }
        entry.inspect(|entry| self.volume.forget(entry.node, 1));
        names.sort();
        names
    }

    pub fn staged(&self) -> Vec<StagedFile> {
        match self.volume.kind() {
            VolumeKind::Objects(state) => state.staged,
            _ => unreachable!(),
        }
    }

    /// Waits until the bucket has an object with these bytes.
    pub fn wait_until_stored(&self, key: &str, bytes: &[u8]) {
        wait_for(key, || self.stored(key).as_deref() == Some(bytes));
    }

    /// Waits until nothing is staged but what is lost.
    pub fn wait_until_all_stored(&self) {
        wait_for("all is stored", || self.staged().iter().all(|staged| staged.is_lost));
    }

    /// Returns the bytes of an object in the bucket.
    pub fn stored(&self, key: &str) -> Option<Vec<u8>> {
        self.bucket.object(key).map(|(bytes, _)| bytes)
    }

    pub fn nr_staging_files(&self) -> usize {
        nr_staging_files(self.staging.path())
    }
}

/// Returns how many files of drafts the staging directory of the one volume below a path has,
/// without what is lost.
pub fn nr_staging_files(staging: &Path) -> usize {
    let below = std::fs::read_dir(staging).unwrap().next().unwrap().unwrap().path();
    let names = std::fs::read_dir(below).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name != "lost" && name != "volume").count()
}

/// Opens a volume, when the last bytes of the one before are written.
fn open(engine: &Arc<Engine>, config: &ObjectConfig) -> Arc<ObjectVolume> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match ObjectVolume::open(engine, config, 0) {
            Err(VolumeError::InUse { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}

pub fn config(bucket: &Arc<MemoryBucket>, staging: &Path, max_bytes: u64) -> ObjectConfig {
    config_with(bucket, staging_config(staging, max_bytes))
}

/// What fails is not tried again in the background.
fn staging_config(dir: &Path, max_bytes: u64) -> StagingConfig {
    StagingConfig { retry_pause: NEVER, ..StagingConfig::new(dir.to_owned(), max_bytes) }
}

fn config_with(bucket: &Arc<MemoryBucket>, staging: StagingConfig) -> ObjectConfig {
    ObjectConfig {
        bucket: Arc::clone(bucket) as _,
        freshness: Freshness::CloseToOpen,
        stores_attributes: true,
        uid: 7,
        gid: 8,
        staging: Some(staging),
        streams: false,
        notes: None,
    }
}

/// Waits for a condition.
pub fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 5) as u8 ^ seed).collect()
}
