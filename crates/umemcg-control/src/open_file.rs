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
    /// What the present sequence of reads sees.
    pub(crate) content: Mutex<Content>,
    /// This file's own peak, once it was reset through it.
    pub(crate) peak: Mutex<Option<Arc<PeakNote>>>,
    /// What a pressure file waits for.
    pub(crate) trigger: Mutex<Option<Arc<Trigger>>>,
    /// For those who poll.
    pub(crate) watch: Watch,
}

/// A text that a reader takes piece by piece. A read that goes on where the last one ended sees the same text, and has
/// the rest of it even after the group is gone; any other read makes a new one.
#[derive(Debug, Default)]
#[doc(alias = "seq_file")]
pub(crate) struct Content {
    pub(crate) text: String,
    /// Where the last read ended.
    pub(crate) next: usize,
}

impl Content {
    /// Whether a read at `offset` goes on in this text.
    pub(crate) fn goes_on_at(&self, offset: usize) -> bool {
        offset > 0 && offset == self.next && !self.text.is_empty()
    }

    /// At most `len` bytes from `offset`.
    pub(crate) fn take(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let start = offset.min(self.text.len());
        let end = start.saturating_add(len).min(self.text.len());
        self.next = offset.max(end);
        self.text.as_bytes()[start..end].to_vec()
    }
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
