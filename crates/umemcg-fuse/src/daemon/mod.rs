//! The daemon: a volume mounted for all users, its control files mounted beside it, and a shutdown
//! that reports all accepted data it could not make durable. `volume_admin` adds and removes
//! volumes; a `spare_thread` flushes when the system refuses new threads.

mod spare_thread;
mod volume_admin;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use thiserror::Error;
use umemcg::Engine;
use umemcg::files::LostData;
use umemcg_base::{LeafMutex, PAGE_SIZE_U64, Rank, assert_may_wait};
use umemcg_vfs::volumes::Member;
use umemcg_vfs::{VolumeConfig, VolumeError, VolumeKind, VolumeSpec, Volumes};

use crate::classify::Classifier;
use crate::data_fs::{DataFs, Lifetimes};
use crate::heartbeat::ReaderWatch;
use crate::mount::{MountError, MountOptions, Mounted, Unmount};
use crate::orphan_guard::{GuardProgram, OrphanGuard};
use crate::session::{Filesystem, Session, SessionConfig, SessionError};
use spare_thread::SpareThread;

pub use volume_admin::{AddVolumeError, RemoveVolumeError, Removed, VolumeInfo};

/// The interval at which a flush reports its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The time allowed beyond the deadline to list the data that is not durable.
const LISTING_TIME: Duration = Duration::from_secs(1);
/// The time allowed for threads to end after their mount is gone; one may hang in a store.
const THREADS_END_WITHIN: Duration = Duration::from_secs(2);
/// The time allowed for threads to end before the helper is left to the end of the process.
const DISMISSED_WITHIN: Duration = Duration::from_millis(200);
/// The time for a flush when a mount ends as soon as it is made.
const FLUSHED_WITHIN: Duration = Duration::from_secs(30);

/// The configuration of a daemon.
#[derive(Debug, Clone)]
pub struct DaemonConfig {
    /// The volume behind the mount; none for a mount of many volumes, added while it is served.
    pub volume: Option<VolumeSpec>,
    /// The mount point.
    pub point: PathBuf,
    /// The options of the mount.
    pub mount: MountOptions,
    /// How long the kernel may cache answers.
    pub lifetimes: Lifetimes,
    /// Threads.
    pub session: SessionConfig,
    /// The helper that ends the mount if this process is killed; without one, programs may then
    /// wait for ever. It acts when the main thread ends, and goes with the [`Daemon`]. See
    /// [`crate::orphan_guard`].
    pub guard: Option<GuardProgram>,
}

impl DaemonConfig {
    /// Returns the defaults for `dir` mounted at `point`.
    pub fn new(dir: impl Into<PathBuf>, point: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self::of(VolumeSpec::Directory(VolumeConfig::new(dir.clone())), dir, point)
    }

    /// Returns the defaults for a volume mounted at `point`, with the source for the mount table.
    pub fn of(spec: VolumeSpec, source: impl AsRef<OsStr>, point: impl Into<PathBuf>) -> Self {
        // A mount inside this directory would make requests wait for themselves.
        let backing = match &spec {
            VolumeSpec::Directory(config) => Some(config.dir.clone()),
            VolumeSpec::Objects(config) => config.staging.as_ref().map(|staging| staging.dir.clone()),
            VolumeSpec::Tmpfs(_) => None,
        };
        let mount = MountOptions { backing, ..MountOptions::new("umemcg", source.as_ref()) };
        Self { volume: Some(spec), mount, ..Self::many(point) }
    }

    /// Returns the defaults for a mount at `point` for many volumes.
    pub fn many(point: impl Into<PathBuf>) -> Self {
        Self {
            volume: None,
            point: point.into(),
            mount: MountOptions::new("umemcg", "volumes"),
            lifetimes: Lifetimes::default(),
            session: SessionConfig::default(),
            guard: None,
        }
    }
}

/// The reason for a failed start.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The directory cannot be a volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// It cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// It cannot be served.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The helper cannot be started.
    #[error("cannot start the helper process: {0}")]
    Guard(#[source] io::Error),
    /// The system refused a thread.
    #[error("cannot start serving: {0}")]
    System(#[from] io::Error),
}

/// Accepted data that is not durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Path inside the volume by the name last used; empty for the volume itself.
    pub path: PathBuf,
    /// Bytes that are not durable: in whole pages, or the length of a staged file.
    pub bytes: u64,
    /// Why.
    pub error: String,
}

/// One mount with its serving threads.
#[derive(Debug)]
struct Served {
    mounted: Mounted,
    session: Session,
}

impl Served {
    fn start(
        point: &Path,
        options: &MountOptions,
        filesystem: Arc<dyn Filesystem>,
        config: SessionConfig,
    ) -> Result<Self, DaemonError> {
        let (mounted, device) = Mounted::mount(point, options)?;
        let session = Session::start(device, filesystem, config)?;
        Ok(Self { mounted, session })
    }

    /// Unmounts, even if the mount is in use.
    fn end(&self) {
        if let Err(error) = self.mounted.unmount(Unmount::ByForce) {
            tracing::warn!(%error, point = %self.mounted.point().display(), "cannot unmount");
        }
        if !self.session.wait(Some(THREADS_END_WITHIN)) {
            tracing::warn!(pool_counts = ?self.session.pool_counts(), "some threads still wait for a store");
        }
    }
}

/// The volumes being served, with their control files if mounted. Dropping it unmounts and does not
/// wait for the store: call [`shut_down`](Self::shut_down) first.
#[derive(Debug)]
pub struct Daemon {
    engine: Arc<Engine>,
    volumes: Arc<Volumes>,
    filesystem: Arc<DataFs>,
    data: Served,
    control: Option<Served>,
    spare: SpareThread,
    guard: Option<OrphanGuard>,
}

impl Daemon {
    /// Opens the volume if there is one, mounts it and serves it. May sleep for its store.
    ///
    /// # Errors
    /// [`DaemonError`]; then nothing stays mounted.
    pub fn start(
        engine: &Arc<Engine>,
        classifier: Arc<dyn Classifier>,
        config: &DaemonConfig,
    ) -> Result<Self, DaemonError> {
        let volumes = Self::open(engine, config.volume.as_ref())?;
        Self::serve(engine, classifier, config, volumes)
    }

    /// Opens the volume, or an empty list for a mount of many, and mounts nothing. May sleep for
    /// the volume's store.
    ///
    /// # Errors
    /// [`DaemonError::Volume`].
    pub fn open(engine: &Arc<Engine>, volume: Option<&VolumeSpec>) -> Result<Arc<Volumes>, DaemonError> {
        Ok(match volume {
            Some(volume) => Volumes::single(volume.open(engine, 0)?),
            None => Volumes::many(),
        })
    }

    /// Mounts and serves volumes opened for this configuration.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn serve(
        engine: &Arc<Engine>,
        classifier: Arc<dyn Classifier>,
        config: &DaemonConfig,
        volumes: Arc<Volumes>,
    ) -> Result<Self, DaemonError> {
        let filesystem = DataFs::new(engine, Arc::clone(&volumes), classifier, config.lifetimes)?;
        let spare = SpareThread::start()?;
        let serving: Arc<dyn Filesystem> = Arc::clone(&filesystem) as _;
        let data = Served::start(&config.point, &config.mount, serving, config.session)?;
        tracing::info!(point = %data.mounted.point().display(), "serving");
        let engine = Arc::clone(engine);
        let mut daemon = Self { engine, volumes, filesystem, data, control: None, spare, guard: None };
        let guard = config.guard.as_ref().map(|program| OrphanGuard::start(program, daemon.mounted()));
        daemon.guard = guard.transpose().map_err(|error| {
            // The mount may have been used.
            let lost = daemon.shut_down(Instant::now() + FLUSHED_WITHIN);
            if !lost.is_empty() {
                tracing::error!(?lost, "files of a mount that could not be guarded are lost");
            }
            DaemonError::Guard(error)
        })?;
        Ok(daemon)
    }

    /// Mounts control files at `point`, and serves them as long as the volume.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn mount_control(
        &mut self,
        point: &Path,
        options: &MountOptions,
        filesystem: Arc<dyn Filesystem>,
        config: SessionConfig,
    ) -> Result<(), DaemonError> {
        self.control = Some(Served::start(point, options, filesystem, config)?);
        Ok(())
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the volumes.
    pub fn volumes(&self) -> &Arc<Volumes> {
        &self.volumes
    }

    /// Returns the file system of the data mount.
    pub fn filesystem(&self) -> &Arc<DataFs> {
        &self.filesystem
    }

    /// Returns the data mount.
    pub fn mounted(&self) -> &Mounted {
        &self.data.mounted
    }

    /// Returns the session of the data mount.
    pub fn session(&self) -> &Session {
        &self.data.session
    }

    /// Returns watches for stuck threads of the mounts.
    pub fn watch_readers(&self) -> Vec<ReaderWatch> {
        let served = std::iter::once(&self.data).chain(&self.control);
        served.map(|served| served.session.watch_readers()).collect()
    }

    /// Returns the control mount, if there is one.
    pub fn control_mounted(&self) -> Option<&Mounted> {
        self.control.as_ref().map(|control| &control.mounted)
    }

    /// Waits until the data mount has ended. Returns false after `timeout`.
    pub fn wait_ended(&self, timeout: Option<Duration>) -> bool {
        self.data.session.wait_gone(timeout)
    }

    /// Returns the number of accepted bytes that are not durable.
    pub fn unclean_bytes(&self) -> u64 {
        self.engine.cache().dirty_limits().nr_unclean() * PAGE_SIZE_U64
    }

    /// Makes all data accepted so far durable, names and attributes included. Gives up at the
    /// deadline. `progress` is called with the number of bytes left. Returns the data that is not
    /// durable.
    pub fn flush(&self, deadline: Instant, progress: &mut dyn FnMut(u64)) -> Vec<Lost> {
        let engine = Arc::clone(&self.engine);
        let timeout = deadline.saturating_duration_since(Instant::now());
        let synced = self.in_background("umemcg-sync", deadline, progress, move || engine.sync_all(timeout));
        let mut lost: Vec<Lost> = match synced {
            Ok(lost) => lost.iter().map(|lost| self.name(lost)).collect(),
            Err(error) => vec![self.name_all(&error)],
        };
        // Everything but file content: names, attributes, times, and staged files. Also after a
        // failure of one volume's store, because the others may be fine.
        let filesystem = Arc::clone(&self.filesystem);
        let synced = self.in_background("umemcg-sync", deadline, progress, move || filesystem.sync_volumes());
        if let Some(error) = failure_of(synced) {
            let members = self.volumes.list(0, usize::MAX);
            members.iter().for_each(|member| add_staged(&mut lost, member, &error));
            if lost.is_empty() {
                lost.push(self.name_all(&error));
            }
        }
        lost
    }

    /// Runs work that may never return, and waits for it until the deadline.
    fn in_background<T: Send + 'static>(
        &self,
        name: &str,
        deadline: Instant,
        progress: &mut dyn FnMut(u64),
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let (said, heard) = mpsc::channel();
        let left = Arc::new(LeafMutex::new(Some(work)));
        let taken = Arc::clone(&left);
        let begun = self.spare.begin(name, move || {
            let work = taken.lock().take();
            drop(said.send(work.map(|work| work())));
        });
        if begun.is_err() {
            // Data is worth more than the deadline.
            let work = left.lock().take();
            return work.map(|work| work()).ok_or_else(|| "the flush broke off".into());
        }
        // A little later than the deadline, for work with the same deadline and a report after it;
        // also if the deadline has already passed.
        let heard_by = deadline.max(Instant::now()) + LISTING_TIME;
        loop {
            let left = heard_by.saturating_duration_since(Instant::now());
            assert_may_wait(Rank::Peer, "a wait for a flush");
            match heard.recv_timeout(left.min(PROGRESS_INTERVAL)) {
                Ok(value) => return value.ok_or_else(|| "the flush broke off".into()),
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => progress(self.unclean_bytes()),
                Err(mpsc::RecvTimeoutError::Timeout) => return Err("the store did not answer in time".into()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err("the flush broke off".into()),
            }
        }
    }

    fn name(&self, lost: &LostData) -> Lost {
        Lost {
            path: self.volumes.path_of_content(&lost.file).unwrap_or_else(|| "(removed)".into()),
            bytes: lost.bytes,
            error: lost.error.clone().unwrap_or_else(|| "the store did not answer in time".into()),
        }
    }

    fn name_all(&self, error: &str) -> Lost {
        Lost { path: PathBuf::new(), bytes: self.unclean_bytes(), error: error.to_owned() }
    }

    /// Unmounts the volume; see [`Unmount`].
    ///
    /// # Errors
    /// `EBUSY` while it is in use, else the system's error.
    pub fn unmount(&self, how: Unmount) -> io::Result<()> {
        self.data.mounted.unmount(how)
    }

    /// Shuts the daemon down: flushes, unmounts even if processes still use the mounts, flushes the
    /// data written meanwhile, and returns the data that is not durable by the deadline.
    pub fn shut_down(&self, deadline: Instant) -> Vec<Lost> {
        // First while it is mounted, so that users are cut off for no longer than needed.
        self.flush(deadline, &mut |_| {});
        self.data.end();
        if let Some(control) = &self.control {
            control.end();
        }
        let filesystem = Arc::clone(&self.filesystem);
        let closing_by = deadline.max(Instant::now() + THREADS_END_WITHIN);
        // Closing a file of a hanging store may hang as well.
        let _ = self.in_background("umemcg-close", closing_by, &mut |_| {}, move || filesystem.close_all());
        self.flush(deadline, &mut |_| {})
    }
}

/// Returns why a sync in the background has failed, or did not end in time.
fn failure_of(synced: Result<Result<(), impl fmt::Display>, String>) -> Option<String> {
    match synced {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error),
    }
}

/// Adds the staged files of a volume not yet in its store, unless they are listed already.
fn add_staged(lost: &mut Vec<Lost>, member: &Member, error: &str) {
    let VolumeKind::Objects(state) = member.volume().kind() else { return };
    for staged in state.staged.iter().filter(|staged| !staged.is_lost) {
        let path = Path::new(member.name()).join(&staged.key);
        if !lost.iter().any(|lost| lost.path == path) {
            lost.push(Lost { path, bytes: staged.bytes, error: error.to_owned() });
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After a shutdown both mounts are gone already.
        let _ = self.data.mounted.unmount(Unmount::ByForce);
        if let Some(control) = &self.control {
            let _ = control.mounted.unmount(Unmount::ByForce);
        }
        // As long as a thread waits, the helper stays until this process has ended.
        if let Some(guard) = &mut self.guard
            && self.data.session.wait(Some(DISMISSED_WITHIN))
        {
            guard.dismiss();
        }
    }
}
