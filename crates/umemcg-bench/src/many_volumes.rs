//! A pool with many volumes, each a directory of the host, and a kernel above them that forgets
//! inodes immediately on request.
//!
//! A volume takes a descriptor. Where fewer are allowed than there are groups, several groups share
//! a volume, each with a file of its own there.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umemcg::{Engine, EngineConfig, Group};
use umemcg_vfs::{
    Caller, Create, HostVolume, IdleInode, KernelCache, Lookup, NodeId, OFlags, Volume, VolumeConfig,
};

use crate::options::{Failure, Options};

/// Descriptors for everything else.
const OTHER_DESCRIPTORS: u64 = 1024;

/// Groups and volumes; group n uses volume n modulo the number of volumes.
pub struct World {
    /// The pool.
    pub engine: Arc<Engine>,
    /// All groups, below one parent.
    pub groups: Vec<Arc<Group>>,
    /// All volumes.
    pub volumes: Vec<Arc<HostVolume>>,
    /// Last: the directories are removed after all their open descriptors.
    _directory: tempfile::TempDir,
}

/// The kernel above one volume: it forgets on request.
#[derive(Debug)]
struct Forgetful(OnceLock<Weak<HostVolume>>);

impl KernelCache for Forgetful {
    fn asks_by_name(&self) -> bool {
        false
    }

    fn let_go(&self, idle: Vec<IdleInode>) -> bool {
        let Some(volume) = self.0.get().and_then(Weak::upgrade) else { return false };
        for idle in idle {
            // It has looked each name up once.
            volume.forget(idle.node, 1);
        }
        true
    }
}

impl World {
    /// Makes `nr` groups and as many volumes as allowed, and a file by each group in its volume.
    ///
    /// # Errors
    /// A refusal of the system or of the pool.
    pub fn new(options: &Options, nr: usize, pool_bytes: u64) -> Result<Self, Failure> {
        let allowed = allow_descriptors(nr as u64 + OTHER_DESCRIPTORS);
        let nr_volumes = (nr as u64).min(allowed.saturating_sub(OTHER_DESCRIPTORS)).max(1) as usize;
        let directory =
            tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
        let engine =
            Engine::new(EngineConfig::new(pool_bytes)).map_err(Failure::at("cannot make an engine"))?;
        let parent = engine
            .create_group(engine.root(), "groups".as_ref())
            .map_err(Failure::at("cannot create a group"))?;
        let (mut groups, mut volumes) = (Vec::with_capacity(nr), Vec::with_capacity(nr_volumes));
        for at in 0..nr {
            let group = engine.create_group(&parent, &OsString::from(format!("g{at}")));
            groups.push(group.map_err(Failure::at("cannot create a group"))?);
        }
        for at in 0..nr_volumes {
            // Not all in one directory: hosts slow down.
            let path: PathBuf = directory.path().join(format!("{}", at / 1000)).join(format!("v{at}"));
            fs::create_dir_all(&path).map_err(Failure::at("cannot make a directory"))?;
            let volume = HostVolume::new(&engine, VolumeConfig::one_of_many(path))
                .map_err(Failure::at("cannot make a volume"))?;
            let kernel = Arc::new(Forgetful(OnceLock::new()));
            kernel.0.get_or_init(|| Arc::downgrade(&volume));
            volume.set_kernel(kernel);
            volumes.push(volume);
        }
        let world = Self { engine, groups, volumes, _directory: directory };
        for at in 0..nr {
            let created = world.volume_of(at).create(
                &world.caller(at),
                NodeId::ROOT,
                file_of(at).as_ref(),
                0o644,
                OFlags::WRONLY,
            );
            drop(created.map_err(Failure::at("cannot create a file"))?);
        }
        Ok(world)
    }

    /// Returns the caller of a group.
    pub fn caller(&self, at: usize) -> Caller {
        Caller {
            uid: 0,
            gid: 0,
            supplementary_gid: None,
            group: Arc::clone(&self.groups[at]),
            umask: 0o022,
            thread: 0,
        }
    }

    fn volume_of(&self, at: usize) -> &Arc<HostVolume> {
        &self.volumes[at % self.volumes.len()]
    }

    /// Looks the file of every group up again, each by its group.
    ///
    /// # Errors
    /// The error of the host.
    pub fn look_everything_up(&self) -> Result<(), Failure> {
        for at in 0..self.groups.len() {
            let volume = self.volume_of(at);
            volume
                .lookup(&self.caller(at), NodeId::ROOT, file_of(at).as_ref())
                .map_err(Failure::at("cannot look a file up"))?;
        }
        Ok(())
    }

    /// Returns the number of remembered inodes beside the roots.
    pub fn nr_remembered(&self) -> usize {
        self.volumes.iter().map(|volume| volume.nr_inodes() - 1).sum()
    }
}

/// Returns the name of a group's file.
fn file_of(at: usize) -> String {
    format!("f{at}")
}

/// Raises the limit of open files as far as allowed, up to this many; returns the new limit.
fn allow_descriptors(nr: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let wanted =
        Rlimit { current: Some(nr.max(limit.current.unwrap_or(0)).min(maximum)), maximum: limit.maximum };
    if setrlimit(Resource::Nofile, wanted).is_ok() && maximum < nr {
        // The superuser may raise the hard limit, too.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(nr), maximum: Some(nr) });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
