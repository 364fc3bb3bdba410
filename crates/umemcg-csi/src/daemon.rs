//! The plugin's interface to the daemon of the node. The program implements it over the admin
//! socket, tests in memory.
//!
//! Groups and limits are not here: the plugin makes and sets them through the control files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tonic::Status;

/// Where the data of a volume is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeData {
    /// In the pool of the daemon.
    Tmpfs {
        /// Its size limit in bytes; if absent, only the limits of groups apply.
        size_bytes: Option<u64>,
    },
    /// In an object store.
    Store {
        /// The bucket and prefix.
        url: String,
        /// Options of `umemcg volume add` by name, without leading dashes.
        options: BTreeMap<String, String>,
    },
    /// In a directory of the node.
    Dir {
        /// Its absolute path.
        path: String,
    },
    /// In a volume from the daemon's configuration; the plugin neither adds nor removes it.
    Existing {
        /// Its name.
        volume: String,
    },
}

impl VolumeData {
    /// Returns whether the options of the volume allow no write.
    pub fn is_read_only(&self) -> bool {
        let Self::Store { options, .. } = self else { return false };
        options.get("writes").map_or(!options.contains_key("staging"), |writes| writes == "none")
    }
}

/// A volume of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVolume {
    /// Its name.
    pub name: String,
    /// The last failure of its store; none once the store has answered since.
    pub trouble: Option<String>,
}

/// The reason why a request to the daemon failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DaemonError {
    /// The daemon does not run: its mounts are gone.
    #[error("{0}")]
    Absent(String),
    /// The daemon did not answer. The request may have been carried out.
    #[error("{0}")]
    Unknown(String),
    /// The daemon serves too many requests at the same time, and has not begun this one.
    #[error("the daemon serves too many requests at the same time; try again")]
    Crowded,
    /// The volume or its directory is in use.
    #[error("{0}")]
    Busy(String),
    /// Data of the volume cannot be made durable.
    #[error("{0}")]
    Lost(String),
    /// The daemon refused.
    #[error("{0}")]
    Refused(String),
}

impl From<DaemonError> for Status {
    fn from(error: DaemonError) -> Self {
        let text = error.to_string();
        match error {
            DaemonError::Absent(_) | DaemonError::Unknown(_) | DaemonError::Crowded => {
                Self::unavailable(text)
            }
            DaemonError::Busy(_) => Self::aborted(text),
            DaemonError::Lost(_) => Self::internal(text),
            DaemonError::Refused(_) => Self::invalid_argument(text),
        }
    }
}

/// The daemon of the node. Calls block until the daemon answers.
pub trait Daemon: Send + Sync + 'static {
    /// Returns its volumes.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn volumes(&self) -> Result<Vec<KnownVolume>, DaemonError>;

    /// Adds a volume.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn add_volume(&self, name: &str, data: &VolumeData) -> Result<(), DaemonError>;

    /// Makes the data of a volume durable and removes the volume.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn remove_volume(&self, name: &str) -> Result<(), DaemonError>;

    /// Adds the rule that places the processes of a pod into a group, unless it exists.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn add_pod(&self, uid: &str, group: &str) -> Result<(), DaemonError>;

    /// Removes the rule for a pod, if it exists.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn remove_pod(&self, uid: &str) -> Result<(), DaemonError>;
}
