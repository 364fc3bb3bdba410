//! The daemon of the node, as the plugin needs it. The program implements it over the admin socket,
//! a test in memory.
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
        /// The most bytes that it may hold; if absent, only the groups' limits apply.
        size_bytes: Option<u64>,
    },
    /// In a store of objects.
    Store {
        /// The bucket and prefix.
        url: String,
        /// How it is reached: options of `umemcg volume add` by name, without dashes in front.
        options: BTreeMap<String, String>,
    },
    /// In a directory of the node.
    Dir {
        /// Its absolute path.
        path: String,
    },
    /// In a volume that the daemon has by its configuration; the plugin neither adds nor removes
    /// it.
    Existing {
        /// Its name.
        volume: String,
    },
}

/// A volume of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVolume {
    /// Its name.
    pub name: String,
    /// The last failure of its store; none if the store has answered since.
    pub trouble: Option<String>,
}

/// Why the daemon did not do what the plugin asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DaemonError {
    /// It does not run: what it served is gone.
    #[error("{0}")]
    Absent(String),
    /// It did not answer, and may have done it.
    #[error("{0}")]
    Unknown(String),
    /// It serves too many requests at the same time, and has not begun this one.
    #[error("the daemon serves too many requests at the same time; try again")]
    Crowded,
    /// The volume or its directory is in use.
    #[error("{0}")]
    Busy(String),
    /// Data of the volume cannot be made durable.
    #[error("{0}")]
    Lost(String),
    /// It refused.
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

/// The daemon of the node. Calls block, for as long as the daemon takes.
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

    /// Makes a volume durable and removes it.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn remove_volume(&self, name: &str) -> Result<(), DaemonError>;

    /// Places the processes of a pod into a group, unless it does so.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn add_pod(&self, uid: &str, group: &str) -> Result<(), DaemonError>;

    /// Removes the rule for a pod, if there is one.
    ///
    /// # Errors
    /// [`DaemonError`].
    fn remove_pod(&self, uid: &str) -> Result<(), DaemonError>;
}
