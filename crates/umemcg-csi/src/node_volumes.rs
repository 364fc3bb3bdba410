//! The volumes of a node in its daemon: added, checked and removed as the records say.

use std::sync::Arc;

use tonic::Status;

use crate::daemon::{Daemon, DaemonError, KnownVolume, VolumeData};
use crate::records::{Records, Staged};

/// The volumes. Calls block.
pub struct NodeVolumes {
    daemon: Arc<dyn Daemon>,
    records: Arc<Records>,
}

impl NodeVolumes {
    /// Returns the volumes of a daemon.
    pub fn new(daemon: Arc<dyn Daemon>, records: Arc<Records>) -> Self {
        Self { daemon, records }
    }

    /// Adds a volume to the daemon, unless the daemon has it.
    ///
    /// # Errors
    /// `NotFound` if it is missing from the daemon's configuration; the daemon's errors.
    pub fn ensure(&self, volume: &Staged) -> Result<(), Status> {
        match (self.has(volume.served_name())?, &volume.data) {
            (true, _) => Ok(()),
            (false, VolumeData::Existing { volume }) => {
                Err(Status::not_found(format!("the daemon has no volume `{volume}`")))
            }
            (false, data) => match self.daemon.add_volume(&volume.name, data) {
                // An earlier plugin, killed since, had asked for it, and the daemon has added it
                // meanwhile.
                Err(DaemonError::Refused(_)) if self.has(&volume.name)? => Ok(()),
                added => Ok(added?),
            },
        }
    }

    /// Checks that the name of a volume to add is free.
    ///
    /// # Errors
    /// `FailedPrecondition` if the daemon has a volume of that name; the daemon's errors.
    pub fn check_free(&self, volume: &Staged) -> Result<(), Status> {
        let is_own = matches!(volume.data, VolumeData::Existing { .. });
        if !is_own && self.has(&volume.name)? {
            let name = &volume.name;
            return Err(Status::failed_precondition(format!(
                "the daemon has a volume `{name}` that this plugin did not add; use it with type: existing"
            )));
        }
        Ok(())
    }

    /// Checks that a volume with a damaged record is not in the daemon: the plugin cannot know
    /// whether it has added the volume.
    ///
    /// # Errors
    /// `FailedPrecondition` if the daemon has it; the daemon's errors.
    pub fn check_gone(&self, name: &str) -> Result<(), Status> {
        match self.records.has_damaged_staged(name) && self.has(name)? {
            false => Ok(()),
            true => Err(Status::failed_precondition(format!(
                "the record of the volume is damaged; `umemcg volume remove {name}` removes it from the node"
            ))),
        }
    }

    /// Makes the data of a volume durable and removes the volume, unless it is from the
    /// configuration or gone.
    ///
    /// # Errors
    /// `Aborted` while it is in use or an earlier request is working on it; the daemon's errors.
    pub fn remove(&self, volume: &Staged) -> Result<(), Status> {
        if matches!(volume.data, VolumeData::Existing { .. }) {
            return Ok(());
        }
        let removed = match self.daemon.volumes() {
            Ok(known) if known.iter().any(|known| known.name == volume.name) => {
                self.daemon.remove_volume(&volume.name)
            }
            known => known.map(drop),
        };
        match removed {
            // The daemon no longer serves it.
            Ok(()) | Err(DaemonError::Absent(_)) => Ok(()),
            // An earlier plugin, killed since, had asked for it, and the daemon has removed it or
            // is removing it.
            Err(DaemonError::Refused(why)) => match self.has(&volume.name)? {
                true => Err(Status::aborted(why)),
                false => Ok(()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the fault of a volume in the daemon; none if it is healthy.
    pub fn trouble_of(&self, volume: &Staged) -> Option<String> {
        match self.daemon.volumes() {
            Err(error) => Some(error.to_string()),
            Ok(known) => match known.into_iter().find(|known| known.name == volume.served_name()) {
                Some(KnownVolume { trouble, .. }) => trouble,
                None => Some("the daemon does not have the volume".into()),
            },
        }
    }

    fn has(&self, name: &str) -> Result<bool, Status> {
        Ok(self.daemon.volumes()?.iter().any(|known| known.name == name))
    }
}
