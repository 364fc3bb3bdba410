//! Volumes of a daemon added, listed and removed while it serves.
//!
//! A removal first makes all accepted data durable. It reports the data it could not make durable,
//! and without force the volume then stays. The callers serve no requests, so they may wait for the
//! notification to forget the name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use umemcg_vfs::volumes::{AddError, Member, RemoveError};
use umemcg_vfs::{NodeId, VolumeKind, VolumeSpec};

use super::{Daemon, Lost, add_staged, failure_of};

/// The time allowed for the kernel to forget a name.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);
/// The time allowed for open files to be closed, and for closing them by force.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// The reason why a volume was not added.
#[derive(Debug, Error)]
pub enum AddVolumeError {
    /// See [`AddError`].
    #[error(transparent)]
    Add(#[from] AddError),
    /// The directory cannot be examined.
    #[error("cannot use the directory {}: {error}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// One directory lies in the other.
    #[error("the directory {} and the mount {} must not contain each other", dir.display(), point.display())]
    Nested {
        /// The volume's.
        dir: PathBuf,
        /// The mount's.
        point: PathBuf,
    },
}

/// The reason why a volume was not removed.
#[derive(Debug, Error)]
pub enum RemoveVolumeError {
    /// See [`RemoveError`].
    #[error(transparent)]
    Refused(#[from] RemoveError),
    /// Some data could not be made durable; the volume stays.
    #[error("not everything on the volume could be made durable; it stays")]
    Lost(Vec<Lost>),
}

/// The result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The accepted data that is not durable; only with force.
    pub lost: Vec<Lost>,
    /// The number of files and directories closed, whose users now get errors; only with force.
    pub nr_closed: usize,
}

/// A volume for a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its place in listings, never reused for another volume of the daemon.
    pub serial: u64,
    /// The place of its data.
    pub kind: VolumeKind,
    /// Files and directories open on it.
    pub nr_open: usize,
}

impl VolumeInfo {
    fn of(member: &Member) -> Self {
        Self {
            name: member.name().to_owned(),
            serial: member.serial(),
            kind: member.volume().kind(),
            nr_open: member.nr_open(),
        }
    }
}

impl Daemon {
    /// Adds a volume; it can be used as soon as this returns. May sleep for the host.
    ///
    /// # Errors
    /// [`AddVolumeError`]; then nothing has changed.
    pub fn add_volume(&self, name: &str, spec: &VolumeSpec) -> Result<VolumeInfo, AddVolumeError> {
        match spec {
            VolumeSpec::Directory(config) => self.check_apart(&config.dir)?,
            VolumeSpec::Objects(config) => {
                config.staging.as_ref().map_or(Ok(()), |staging| self.check_apart(&staging.dir))?;
            }
            VolumeSpec::Tmpfs(_) => {}
        }
        let member = self.volumes.add(name, |base| spec.open(&self.engine, base))?;
        tracing::info!(name, ?spec, "volume added");
        Ok(VolumeInfo::of(&member))
    }

    /// Refuses a directory containing the mount or lying in it: requests would wait for themselves.
    fn check_apart(&self, dir: &Path) -> Result<(), AddVolumeError> {
        let error = |error| AddVolumeError::Directory { dir: dir.to_owned(), error };
        let real = dir.canonicalize().map_err(error)?;
        for mounted in [Some(self.mounted()), self.control_mounted()].into_iter().flatten() {
            let point = mounted.point();
            if real.starts_with(point) || point.starts_with(&real) {
                return Err(AddVolumeError::Nested { dir: real, point: point.to_owned() });
            }
        }
        Ok(())
    }

    /// Returns the volumes, in the order of their addition.
    pub fn list_volumes(&self) -> Vec<VolumeInfo> {
        self.volumes.list(0, usize::MAX).iter().map(|member| VolumeInfo::of(member)).collect()
    }

    /// Makes a volume durable by the deadline, and removes it. With `force`, removes it even if
    /// files are open, whose users then get errors, or if some data cannot be made durable.
    ///
    /// # Errors
    /// [`RemoveVolumeError`]; then the volume stays.
    pub fn remove_volume(
        &self,
        name: &str,
        force: bool,
        deadline: Instant,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Removed, RemoveVolumeError> {
        let leaving = self.volumes.begin_remove(name, force, CLOSED_WITHIN);
        let leaving = leaving.map_err(|refused| self.with_example(refused))?;
        let lost = self.flush_volume(leaving.member(), deadline, progress);
        if !lost.is_empty() && !force {
            return Err(RemoveVolumeError::Lost(lost));
        }
        let member = leaving.finish();
        let notifier = self.session().notifier();
        if !notifier.inval_entry_within(NodeId::ROOT.0, name.as_ref(), FORGOTTEN_WITHIN) {
            tracing::debug!(name, "the kernel is slow to forget a volume");
        }
        let nr_closed = member.nr_open();
        if nr_closed > 0 || !lost.is_empty() {
            let (filesystem, member) = (Arc::clone(&self.filesystem), Arc::clone(&member));
            let by = Instant::now() + CLOSED_WITHIN;
            let _ = self.in_background("umemcg-close", by, &mut |_| {}, move || {
                filesystem.close_all_of(&member);
                member.volume().abandon();
            });
        }
        tracing::info!(name, nr_closed, nr_lost = lost.len(), "volume removed");
        Ok(Removed { lost, nr_closed })
    }

    /// Adds the name of an open file to a refused removal.
    fn with_example(&self, refused: RemoveError) -> RemoveError {
        match refused {
            RemoveError::Busy { name, nr_open, .. } => {
                let member = self.volumes.find(name.as_ref());
                let example = member.map(|member| self.filesystem.example_of_open(&member));
                RemoveError::Busy { name, nr_open, example }
            }
            refused => refused,
        }
    }

    /// Makes a volume durable, names and attributes included. Returns the data that is not durable
    /// by the deadline.
    fn flush_volume(
        &self,
        member: &Arc<Member>,
        deadline: Instant,
        progress: &mut dyn FnMut(u64),
    ) -> Vec<Lost> {
        let (engine, store) = (Arc::clone(&self.engine), member.volume().store_id());
        let timeout = deadline.saturating_duration_since(Instant::now());
        let synced =
            self.in_background("umemcg-sync", deadline, progress, move || engine.sync_store(store, timeout));
        let (mut lost, failure) = match synced {
            Ok(lost) if lost.is_empty() => {
                let syncing = Arc::clone(member);
                let synced =
                    self.in_background("umemcg-sync", deadline, progress, move || syncing.volume().syncfs());
                (Vec::new(), failure_of(synced))
            }
            Ok(lost) => (lost.iter().map(|lost| self.name(lost)).collect(), None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if let Some(error) = failure {
            add_staged(&mut lost, member, &error);
            if lost.is_empty() {
                lost.push(Lost { path: member.name().into(), bytes: 0, error });
            }
        }
        lost
    }
}
