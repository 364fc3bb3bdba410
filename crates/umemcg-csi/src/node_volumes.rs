//! The volumes of a node in its daemon: added, looked for and removed as the records say.

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

    /// Adds a volume to the daemon, unless it has it.
    ///
    /// # Errors
    /// `NotFound` if it is one of the daemon's own that is not there; the daemon's.
    pub fn ensure(&self, volume: &Staged) -> Result<(), Status> {
        match (self.has(volume.served_name())?, &volume.data) {
            (true, _) => Ok(()),
            (false, VolumeData::Existing { volume }) => {
                Err(Status::not_found(format!("the daemon has no volume `{volume}`")))
            }
            (false, data) => match self.daemon.add_volume(&volume.name, data) {
                // A plugin that was killed had asked for it, and the daemon has done it meanwhile.
                Err(DaemonError::Refused(_)) if self.has(&volume.name)? => Ok(()),
                added => Ok(added?),
            },
        }
    }

    /// Checks that a volume that is added now cannot be taken for another one.
    ///
    /// # Errors
    /// `FailedPrecondition` if the daemon has one of that name; the daemon's.
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

    /// Checks that nothing is left of a volume whose record was damaged, so that the plugin does
    /// not know whether it added the volume.
    ///
    /// # Errors
    /// `FailedPrecondition` if the daemon has it; the daemon's.
    pub fn check_gone(&self, name: &str) -> Result<(), Status> {
        match self.records.has_damaged_staged(name) && self.has(name)? {
            false => Ok(()),
            true => Err(Status::failed_precondition(format!(
                "the record of the volume is damaged; `umemcg volume remove {name}` removes it from the node"
            ))),
        }
    }

    /// Makes a volume durable and removes it, unless it is another's or gone.
    ///
    /// # Errors
    /// `Aborted` while it is in use or an earlier request is at it; the daemon's.
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
            // Nothing of it is served any more.
            Ok(()) | Err(DaemonError::Absent(_)) => Ok(()),
            // A plugin that was killed had asked for it, and the daemon has done it or is at it.
            Err(DaemonError::Refused(why)) => match self.has(&volume.name)? {
                true => Err(Status::aborted(why)),
                false => Ok(()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what is wrong with a volume in the daemon.
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
