//! The making of a draft: of a new object, or as a copy of one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::files::{BackingStore, File};
use umemcg::{ChargeEffort, Engine, Group};

use super::draft::{Draft, errno_of};
use super::draft_progress::Progress;
use super::draft_record::DraftRecord;
use super::file_labels::FileLabels;
use super::staging::Staging;
use super::staging_room::RoomClaim;
use crate::attr::NodeId;
use crate::bucket::ObjectInfo;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::descriptor_share::{DescriptorShare, Purpose};
use crate::host::shown_times::Stamp;
use crate::host::store::{HostStore, StoreFds};
use crate::host::syscalls;

/// The cost of a draft with the record in memory, its host file's descriptors and engine's file.
const DRAFT_BYTES: u64 = 4096;

/// The parts needed to make a draft.
pub(super) struct DraftMaker<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) effort: ChargeEffort,
    pub(super) staging: &'a Arc<Staging>,
    pub(super) group: &'a Arc<Group>,
    /// The prefix of the upload marks of the volume.
    pub(super) mark: &'a str,
}

impl DraftMaker<'_> {
    /// Makes a draft of `len` bytes, written to the host's file by `fill`; `base` is its base
    /// version, of `key`. May sleep for memory, for the disk, and as `fill` does.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`, `ENFILE`, the host's, those of `fill`.
    pub(super) fn make(
        &self,
        node: NodeId,
        (base, key): (Option<ObjectInfo>, &str),
        (labels, len): (FileLabels, u64),
        fill: impl FnOnce(&StoreFds) -> Result<(), VfsError>,
    ) -> Result<Arc<Draft>, VfsError> {
        let labels_bytes = labels.bytes() as u64;
        let charge = HandleCharge::take(self.effort, self.engine, self.group, DRAFT_BYTES + labels_bytes)?;
        let room = RoomClaim::take(&self.staging.room, self.group, len)?;
        let share = self.share()?;
        // Nothing is lost with it before its first change.
        let record = DraftRecord { key: key.to_owned(), ..DraftRecord::default() };
        let (serial, fd) =
            self.staging.create(&record).map_err(|error| self.staging.report(errno_of(error)))?;
        let (file, store) = self.open(fd, share, len, fill).inspect_err(|_| {
            self.staging.remove_bytes(serial);
            self.staging.remove_record(serial);
        })?;
        let progress = Progress::new(base, labels, key);
        let mark = format!("{}-{serial}-", self.mark);
        Ok(Draft::new(
            (self.staging, self.group),
            node,
            (serial, mark),
            (file, store),
            (progress, room, charge),
        ))
    }

    fn share(&self) -> Result<DescriptorShare, Errno> {
        let store_id = self.staging.host_dir.store_id;
        DescriptorShare::take(self.group, 1, Purpose::Open, Some(store_id))
    }

    /// Opens the engine's file above a host file.
    fn open(
        &self,
        fd: OwnedFd,
        share: DescriptorShare,
        len: u64,
        fill: impl FnOnce(&StoreFds) -> Result<(), VfsError>,
    ) -> Result<(Arc<File>, Arc<HostStore>), VfsError> {
        let stat = syscalls::stat_fd(&fd)?;
        let store = Arc::new(HostStore::new(Arc::clone(&self.staging.host_dir), Stamp::of(&stat.attr)));
        store.set_fd(fd, true, share);
        if let Some(fds) = store.fds() {
            fill(&fds)?;
        }
        let file = self.engine.open_file(Arc::clone(&store) as Arc<dyn BackingStore>, len);
        Ok((file.map_err(errno_of)?, store))
    }
}
