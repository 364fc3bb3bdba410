//! Facts about the machine, gathered by `umemcg doctor`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};
use umemcg::{Engine, EngineConfig};
use umemcg_base::own_directory::check_above;
use umemcg_control::Style;
use umemcg_fuse::{ProcessClassifier, Tracking};
use umemcg_vfs::VolumeSpec;
use umemcg_vfs::bucket::Bucket;

use super::arguments::DoctorArguments;
use crate::config::Config;
use crate::endpoint::VolumeSource;
use crate::pool::{MIN_POOL_BYTES, PoolSize, Usable, usable_memory};
use crate::reload::check_limits;
use crate::stores::{StoreOptions, StoreSource, spec_of, staging_of};
use crate::writes::Writes;

/// Programs to mount for ordinary users.
const MOUNT_HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
const FUSE_DEVICE: &str = "/dev/fuse";
const FUSE_CONFIG: &str = "/etc/fuse.conf";
const WATCHES: &str = "/proc/sys/fs/fanotify/max_user_groups";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Requests to a store after the first.
const NR_FURTHER_REQUESTS: usize = 5;

/// An error as a message for the user.
pub type Answer<T> = Result<T, String>;

/// See the module text.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The release of the kernel, such as `6.12.5-amd64`.
    pub kernel: String,
    /// Whether the device of FUSE can be opened.
    pub fuse_device: Answer<()>,
    /// Root runs the program.
    pub is_root: bool,
    /// The program to mount for an ordinary user.
    pub mount_helper: Option<PathBuf>,
    /// The mount is for other users, too.
    pub wants_others: bool,
    /// `/etc/fuse.conf` lets ordinary users mount for others.
    pub may_mount_for_others: bool,
    /// The most descriptors of a process; none without a limit.
    pub descriptors_max: Option<u64>,
    /// The most watches of file systems for one user; none if the kernel has no such watches.
    pub watches_max: Option<u64>,
    /// The method of tracking the processes of a group, or the error of starting it.
    pub tracking: Answer<Tracking>,
    /// The requested pool.
    pub pool: PoolSize,
    /// The memory usable by the daemon.
    pub usable: Answer<Usable>,
    /// The modes of transparent huge pages, the chosen one in brackets; none without them.
    pub huge_pages: Option<String>,
    /// The result of checking the configuration; none if no configuration is given.
    pub config: Option<Answer<()>>,
    /// The volumes in directories, and whether each can be listed.
    pub directories: Vec<(String, Answer<()>)>,
    /// The volumes of objects, and the response times of their stores.
    pub stores: Vec<(String, Answer<StoreTimes>)>,
    /// The staging directories.
    pub stagings: Vec<StagingFacts>,
}

/// The response times of a store to a small request.
#[derive(Debug, Clone, Copy)]
pub struct StoreTimes {
    /// The first request, including name resolution, credentials and connection.
    pub first: Duration,
    /// The median of the following requests.
    pub further: Duration,
}

/// A staging directory.
#[derive(Debug, Clone)]
pub struct StagingFacts {
    /// The volume.
    pub volume: String,
    /// The directory.
    pub dir: PathBuf,
    /// The volume's size limit there, in bytes.
    pub max_bytes: u64,
    /// The free bytes, if files can be created there.
    pub free_bytes: Answer<u64>,
}

impl Facts {
    /// Inspects the machine, and reads the configuration if one is given. Sends each store a few
    /// requests.
    pub fn gather(arguments: &DoctorArguments) -> Self {
        let read = arguments.config.as_deref().map(read_config);
        let config = match &read {
            Some(Ok(config)) => Some(config),
            _ => None,
        };
        let configured = config.and_then(|config| config.pool().ok().flatten());
        let mut facts = Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            fuse_device: opened(FUSE_DEVICE.as_ref()),
            is_root: rustix::process::geteuid().is_root(),
            mount_helper: MOUNT_HELPERS.into_iter().find_map(program),
            wants_others: arguments.allow_other,
            may_mount_for_others: fs::read_to_string(FUSE_CONFIG).is_ok_and(|text| allows_others(&text)),
            descriptors_max: getrlimit(Resource::Nofile).maximum,
            watches_max: fs::read_to_string(WATCHES).ok().and_then(|text| text.trim().parse().ok()),
            tracking: tracking(),
            pool: arguments.pool.or(configured).unwrap_or(PoolSize::DEFAULT),
            usable: usable_memory().map_err(|error| error.to_string()),
            huge_pages: fs::read_to_string(HUGE_PAGES).ok().map(|text| text.trim().to_owned()),
            config: read.as_ref().map(|read| read.as_ref().map(drop).map_err(Clone::clone)),
            directories: Vec::new(),
            stores: Vec::new(),
            stagings: Vec::new(),
        };
        if let Some(config) = config {
            facts.gather_volumes(config);
        }
        facts
    }

    fn gather_volumes(&mut self, config: &Config) {
        for entry in config.volumes() {
            let volume = entry.name().to_owned();
            match entry.data() {
                Ok(VolumeSource::Dir { path }) => {
                    let listed = fs::read_dir(&path).map(drop);
                    let listed = listed.map_err(|error| format!("{}: {error}", path.display()));
                    self.directories.push((volume, listed));
                }
                Ok(VolumeSource::Store(source)) => {
                    self.stagings.extend(staging_facts(&volume, &source.options));
                    self.stores.push((volume, ask(&source)));
                }
                // An invalid entry is already reported as an invalid configuration.
                Ok(VolumeSource::Tmpfs { .. }) | Err(_) => {}
            }
        }
    }
}

/// Reads a configuration and checks all of it.
fn read_config(path: &Path) -> Answer<Config> {
    let read = || {
        let config = Config::read(path)?;
        config.pool()?;
        config.metrics()?;
        config.log()?;
        config.rules()?;
        check_limits(&config, config.control_style().map_or(Style::Both, Style::from))?;
        for entry in config.volumes() {
            entry.data()?;
        }
        Ok(config)
    };
    read().map_err(|failure: crate::exit::Failure| failure.to_string())
}

fn opened(path: &Path) -> Answer<()> {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| error.to_string())
}

/// Returns the path of a program.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| access(file, Access::EXEC_OK).is_ok())
}

/// Returns whether the text of `/etc/fuse.conf` lets ordinary users mount for others.
fn allows_others(text: &str) -> bool {
    text.lines().any(|line| line.trim() == "user_allow_other")
}

/// Returns the method of tracking the processes of a group.
fn tracking() -> Answer<Tracking> {
    let engine = trial_engine()?;
    let processes = ProcessClassifier::new(engine, Vec::new()).map_err(|error| error.to_string())?;
    Ok(processes.tracking())
}

fn trial_engine() -> Answer<Arc<Engine>> {
    Engine::new(EngineConfig::new(MIN_POOL_BYTES)).map_err(|error| error.to_string())
}

/// Opens the store of a volume of objects, as a start does, and measures a few requests.
fn ask(source: &StoreSource) -> Answer<StoreTimes> {
    match spec_of(&read_only(source)?)? {
        VolumeSpec::Objects(config) => times_of(&*config.bucket),
        VolumeSpec::Directory(_) | VolumeSpec::Tmpfs(_) => Err("it is not a volume of objects".into()),
    }
}

/// Returns the response times of a bucket to listings of one name.
fn times_of(bucket: &dyn Bucket) -> Answer<StoreTimes> {
    let request = || {
        let begun = Instant::now();
        let listed = bucket.list("", None, 1);
        listed.map(|_| begun.elapsed()).map_err(|error| format!("{}: {error}", bucket.url()))
    };
    let first = request()?;
    let mut further = [Duration::ZERO; NR_FURTHER_REQUESTS];
    for time in &mut further {
        *time = request()?;
    }
    further.sort_unstable();
    Ok(StoreTimes { first, further: further[NR_FURTHER_REQUESTS / 2] })
}

/// Returns a volume with writes off: staged files belong to the serving daemon.
fn read_only(source: &StoreSource) -> Answer<StoreSource> {
    Writes::checked(source.options.writes, source.options.staging.is_some())?;
    staging_of(&source.options)?;
    let options = StoreOptions { writes: None, staging: None, staging_size: None, ..source.options.clone() };
    Ok(StoreSource { options, ..source.clone() })
}

fn staging_facts(volume: &str, options: &StoreOptions) -> Option<StagingFacts> {
    let staging = staging_of(options).ok()??;
    let free_bytes = access(&staging.dir, Access::WRITE_OK | Access::EXEC_OK)
        .and_then(|()| statvfs(&staging.dir))
        .map(|found| found.f_bavail.saturating_mul(found.f_frsize))
        .map_err(|errno| errno.to_string());
    // The daemon makes a subdirectory for the volume.
    let me = rustix::process::geteuid().as_raw();
    let is_safe = check_above(&staging.dir.join("volume"), me).map_err(|error| error.to_string());
    let free_bytes = free_bytes.and_then(|free_bytes| is_safe.map(|()| free_bytes));
    Some(StagingFacts {
        volume: volume.to_owned(),
        dir: staging.dir,
        max_bytes: staging.max_bytes,
        free_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_of_its_own_lets_others_in() {
        assert!(allows_others("# comment\n user_allow_other \n"));
        for text in ["", "#user_allow_other\n", "mount_max = 10\n", "user_allow_others\n"] {
            assert!(!allows_others(text), "{text}");
        }
    }

    #[test]
    fn a_store_is_asked_without_its_writes() {
        let source = |writes| {
            let staging = Some("/staging".into());
            let options = StoreOptions { writes, staging, ..StoreOptions::default() };
            StoreSource { url: "s3://b".into(), options, state: None }
        };
        for writes in [None, Some(Writes::Staged)] {
            assert!(read_only(&source(writes)).unwrap().options.is_empty(), "{writes:?}");
        }
        let mut without = source(None);
        (without.options.staging, without.options.staging_size) = (None, Some("1G".into()));
        assert!(read_only(&without).unwrap_err().contains("staging directory"));
        assert!(read_only(&source(Some(Writes::Streamed))).unwrap_err().contains("--staging"));
    }

    #[test]
    fn a_staging_directory_that_cannot_be_used_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let options = |dir: PathBuf| StoreOptions { staging: Some(dir), ..StoreOptions::default() };
        let found = staging_facts("v", &options(directory.path().into())).unwrap();
        assert!(found.free_bytes.unwrap() > 0);
        let mut others = fs::metadata(directory.path()).unwrap().permissions();
        assert!(staging_facts("v", &options(directory.path().join("no"))).unwrap().free_bytes.is_err());
        assert!(staging_facts("v", &StoreOptions::default()).is_none());
        std::os::unix::fs::PermissionsExt::set_mode(&mut others, 0o777);
        fs::set_permissions(directory.path(), others).unwrap();
        let refused = staging_facts("v", &options(directory.path().into())).unwrap().free_bytes;
        assert!(refused.unwrap_err().contains("other users may change names"));
    }
}
