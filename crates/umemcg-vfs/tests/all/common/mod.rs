//! A volume in a temporary directory, and short ways to use it.
#![allow(dead_code)]

pub mod fake_kernel;
pub mod gate;
pub mod labels;
pub mod memory_bucket;
pub mod object_world;
pub mod page_kernel;
pub mod rerun;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use umemcg::{Engine, EngineConfig};
use umemcg_vfs::{
    Attr, Attributes, Caller, Create, Entry, HostVolume, Lookup, NodeId, OFlags, Open, Resolve, SetAttr,
    VfsError, VolumeConfig, VolumeFile,
};

pub const ROOT: NodeId = NodeId::ROOT;

/// A volume with its directory.
pub struct Fixture {
    pub dir: TempDir,
    pub engine: Arc<Engine>,
    pub vfs: Arc<HostVolume>,
    pub root: Caller,
}

pub fn name(text: &str) -> &OsStr {
    OsStr::from_bytes(text.as_bytes())
}

/// The error number of what failed.
pub fn errno<T: std::fmt::Debug>(result: Result<T, VfsError>) -> rustix::io::Errno {
    result.expect_err("this must fail").errno()
}

/// Both ways to reach inodes.
pub const RESOLVES: [Resolve; 2] = [Resolve::Auto, Resolve::Names];

/// Runs a claim on a volume reached by handles (where the process may) and on one reached by names.
pub fn both_ways(claim: impl Fn(&Fixture)) {
    for resolve in RESOLVES {
        claim(&Fixture::with(|config| config.resolve = resolve));
    }
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut VolumeConfig)) -> Self {
        Self::on(tempfile::tempdir().unwrap(), change)
    }

    /// On a file system whose positions in a directory are not taken to outlive a descriptor.
    pub fn on_tmpfs() -> Self {
        Self::on(tempfile::tempdir_in("/dev/shm").unwrap(), |_| {})
    }

    fn on(dir: TempDir, change: impl FnOnce(&mut VolumeConfig)) -> Self {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let mut config = VolumeConfig::new(dir.path());
        // Most claims are about what is left when everything was forgotten.
        config.max_kept_files = 0;
        change(&mut config);
        let vfs = HostVolume::new(&engine, config).unwrap();
        let root = Caller {
            uid: 0,
            gid: 0,
            supplementary_gid: None,
            group: Arc::clone(engine.root()),
            umask: 0o022,
            thread: 0,
        };
        Self { dir, engine, vfs, root }
    }

    /// A caller that is not the superuser.
    pub fn user(&self, uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, ..self.root.clone() }
    }

    /// A path on the host.
    pub fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Looks up a path with slashes.
    pub fn walk(&self, path: &str) -> Result<Entry, VfsError> {
        let mut found = None;
        for part in path.split('/') {
            let parent = found.map_or(ROOT, |e: Entry| e.node);
            found = Some(self.vfs.lookup(&self.root, parent, name(part))?);
        }
        Ok(found.unwrap())
    }

    pub fn attr(&self, path: &str) -> Attr {
        self.walk(path).unwrap().attr
    }

    pub fn create(&self, parent: NodeId, path: &str) -> (Entry, Arc<dyn VolumeFile>) {
        self.vfs.create(&self.root, parent, name(path), 0o644, OFlags::RDWR | OFlags::EXCL).unwrap()
    }

    pub fn mkdir(&self, parent: NodeId, path: &str) -> Entry {
        self.vfs.mkdir(&self.root, parent, name(path), 0o755).unwrap()
    }

    pub fn open(&self, node: NodeId, flags: OFlags) -> Arc<dyn VolumeFile> {
        self.vfs.open(&self.root, node, flags).unwrap()
    }

    pub fn write(&self, file: &Arc<dyn VolumeFile>, offset: u64, data: &[u8]) {
        assert_eq!(file.write(&self.root.group, offset, data, false).unwrap(), data.len());
    }

    pub fn read(&self, file: &Arc<dyn VolumeFile>, offset: u64, len: usize) -> Vec<u8> {
        file.read(&self.root.group, offset, len).unwrap().to_vec()
    }

    /// The whole content by a fresh open.
    pub fn cat(&self, path: &str) -> Vec<u8> {
        let file = self.open(self.walk(path).unwrap().node, OFlags::RDONLY);
        self.read(&file, 0, usize::MAX >> 1)
    }

    pub fn set(&self, node: NodeId, change: SetAttr) -> Result<Attr, VfsError> {
        self.vfs.setattr(&self.root, node, &change)
    }

    /// Names in a directory but "." and "..", sorted.
    pub fn ls(&self, node: NodeId) -> Vec<String> {
        let handle = self.vfs.opendir(&self.root, node).unwrap();
        let mut names = Vec::new();
        handle
            .readdir(0, &mut |entry| {
                names.push(entry.name.to_string_lossy().into_owned());
                true
            })
            .unwrap();
        names.retain(|n| n != "." && n != "..");
        names.sort();
        names
    }
}
