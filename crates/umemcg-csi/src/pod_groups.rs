//! The groups of pods. The plugin makes and limits them through the daemon's control files, as an
//! operator would: `mkdir NAMESPACE/POD`, and a write for each limit.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tonic::{Code, Status};

use crate::mounts::control_mount;
use crate::pod::Pod;

/// The hard limit of a group; the root's is the pool.
const LIMIT: &str = "memory.limit_in_bytes";
/// A lower bound of its value without a limit, as the exact value is rounded to pages.
const UNLIMITED: u64 = 1 << 62;
/// The hard limit by its newer name; unlike the older file, it takes effect whatever the usage.
const MAX: &str = "memory.max";

/// The control files of a daemon.
#[derive(Debug)]
pub struct PodGroups {
    dir: PathBuf,
}

impl PodGroups {
    /// Returns the groups of the control files at a path.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Checks that the control files are mounted.
    ///
    /// # Errors
    /// `Unavailable` if they are not.
    pub fn check(&self) -> Result<(), Status> {
        control_mount(&self.dir).map(drop)
    }

    /// Returns whether the namespace and the pod have groups.
    ///
    /// # Errors
    /// `Unavailable` without control files.
    pub fn exist(&self, pod: &Pod) -> Result<(bool, bool), Status> {
        control_mount(&self.dir)?;
        Ok((self.dir.join(&pod.namespace).is_dir(), self.group(pod).is_dir()))
    }

    /// Makes the group of a pod, and that of its namespace, unless they exist.
    ///
    /// # Errors
    /// `Unavailable` without control files; `Internal`.
    pub fn make(&self, pod: &Pod) -> Result<(), Status> {
        control_mount(&self.dir)?;
        for path in [self.dir.join(&pod.namespace), self.group(pod)] {
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("make the group of", pod, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the size of the pool.
    ///
    /// # Errors
    /// `FailedPrecondition` if the control files do not show it.
    pub fn pool_bytes(&self) -> Result<u64, Status> {
        bytes_in(&self.dir.join(LIMIT)).map_err(|error| {
            let what = format!("an inline volume of memory needs the control file {LIMIT} of the root");
            Status::failed_precondition(format!("{what}: {error}"))
        })
    }

    /// Returns the limit of the group of a namespace; `None` without a limit, or without a group.
    ///
    /// # Errors
    /// `Internal` if it cannot be read: the group may have a limit.
    pub fn limit_of_namespace(&self, namespace: &str) -> Result<Option<u64>, Status> {
        match bytes_in(&self.dir.join(namespace).join(LIMIT)) {
            Ok(limit) => Ok(Some(limit).filter(|&limit| limit < UNLIMITED)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(Status::internal(format!("cannot read {LIMIT} of the group /{namespace}: {error}")))
            }
        }
    }

    /// Sets the limit of the group of a namespace. Blocks for reclaim, and so for stores, if the
    /// usage is higher.
    ///
    /// # Errors
    /// `Internal`.
    pub fn limit_namespace(&self, namespace: &str, limit: u64) -> Result<(), Status> {
        let group = self.dir.join(namespace);
        let name = if group.join(MAX).exists() { MAX } else { LIMIT };
        write_control(&group.join(name), &limit.to_string()).map_err(|error| {
            Status::internal(format!("cannot set {name} of the group /{namespace} to {limit}: {error}"))
        })
    }

    /// Removes this limit of the group of a namespace, unless the group has another, or is gone.
    ///
    /// # Errors
    /// `Internal`.
    pub fn lift_limit(&self, namespace: &str, limit: u64) -> Result<(), Status> {
        let group = self.dir.join(namespace);
        let (name, unlimited) = if group.join(MAX).exists() { (MAX, "max") } else { (LIMIT, "-1") };
        let lifted = match bytes_in(&group.join(LIMIT)) {
            Ok(found) if found == limit => write_control(&group.join(name), unlimited),
            found => found.map(drop),
        };
        match lifted {
            Err(error) if !is_gone(&error) => {
                Err(Status::internal(format!("cannot lift the limit of the group /{namespace}: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Sets limits of a pod's group.
    ///
    /// # Errors
    /// `InvalidArgument` if the daemon does not have a limit or refuses its value; other limits may
    /// have been set by then.
    pub fn limit(&self, pod: &Pod, limits: &BTreeMap<String, String>) -> Result<(), Status> {
        for (file, value) in limits {
            write_control(&self.group(pod).join(file), value).map_err(|error| {
                let group = pod.group();
                let text = format!("cannot set `{file}` of the group {group} to `{value}`: {error}");
                let refused = [Errno::INVAL, Errno::NOENT, Errno::RANGE, Errno::OVERFLOW, Errno::ACCESS];
                let is_refused = |code| refused.iter().any(|errno: &Errno| errno.raw_os_error() == code);
                match error.raw_os_error().is_some_and(is_refused) {
                    true => Status::invalid_argument(text),
                    false => Status::internal(text),
                }
            })?;
        }
        Ok(())
    }

    /// Removes the group of a pod, unless it is gone.
    ///
    /// # Errors
    /// `Aborted` while it is in use: an operator moved a process into it, or made groups below;
    /// `Internal`.
    pub fn remove(&self, pod: &Pod) -> Result<(), Status> {
        self.remove_dir(&self.group(pod)).map_err(|error| match is_in_use(&error) {
            true => Status::aborted(format!(
                "the group {} is in use: move its processes away, and remove the groups below it",
                pod.group()
            )),
            false => failed("remove the group of", pod, &error),
        })
    }

    /// Removes the group of a pod's namespace, unless it is gone, or an operator uses it too: with
    /// processes in it, or groups below it other than pods'.
    ///
    /// # Errors
    /// `Internal`.
    pub fn remove_namespace(&self, pod: &Pod) -> Result<(), Status> {
        match self.remove_dir(&self.dir.join(&pod.namespace)) {
            Err(error) if is_in_use(&error) => {
                tracing::info!(
                    namespace = pod.namespace,
                    "the group of a namespace without pods is in use, and stays"
                );
                Ok(())
            }
            removed => removed.map_err(|error| failed("remove the namespace's group of", pod, &error)),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if control_mount(&self.dir).is_err_and(|error| error.code() == Code::Unavailable) {
            return Ok(());
        }
        match fs::remove_dir(path) {
            Err(error) if is_gone(&error) => Ok(()),
            removed => removed,
        }
    }

    fn group(&self, pod: &Pod) -> PathBuf {
        self.dir.join(&pod.namespace).join(&pod.name)
    }
}

fn write_control(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Returns the number in a control file.
fn bytes_in(path: &Path) -> io::Result<u64> {
    fs::read_to_string(path)?.trim_end().parse::<u64>().map_err(io::Error::other)
}

/// Returns whether a group is gone, or its daemon with it.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotConnected)
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty)
}

fn failed(what: &str, pod: &Pod, error: &io::Error) -> Status {
    Status::internal(format!("cannot {what} the pod {}: {error}", pod.group()))
}
