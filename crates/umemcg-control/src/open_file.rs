//! An open control file: whose it is, who opened it, and the text that the reader is in the middle of.

use std::sync::{Arc, Weak};

use umemcg::Group;
use umemcg_base::sync::Mutex;

use crate::error::ControlError;
use crate::peak::PeakNote;
use crate::permission::Credentials;
use crate::pressure::Trigger;
use crate::row::Row;
use crate::watch::Watch;

/// An open control file. Does not keep its group: after the group is removed, every use says so.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) group: Weak<Group>,
    pub(crate) row: &'static Row,
    pub(crate) opener: Credentials,
    /// What the present sequence of reads sees; made anew by a read at offset 0.
    pub(crate) content: Mutex<Option<Arc<str>>>,
    /// This file's own peak, once it was reset through it.
    pub(crate) peak: Mutex<Option<Arc<PeakNote>>>,
    /// What a pressure file waits for.
    pub(crate) trigger: Mutex<Option<Arc<Trigger>>>,
    /// For those who poll.
    pub(crate) watch: Watch,
}

impl OpenFile {
    /// The living group.
    pub(crate) fn group(&self) -> Result<Arc<Group>, ControlError> {
        self.group.upgrade().filter(|group| !group.is_dead()).ok_or(ControlError::Gone)
    }

    /// Whether a write may wait for reclaim, so that it should not be served by a thread that must not wait.
    pub fn write_reclaims(&self) -> bool {
        self.row.write_reclaims
    }

    /// The file's name.
    pub fn name(&self) -> &'static str {
        self.row.name
    }
}
