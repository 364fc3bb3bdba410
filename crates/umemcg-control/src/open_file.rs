//! An open control file: its group, its opener, and the text being read.

use std::sync::{Arc, Weak};

use umemcg::internal::AccountedCharge;
use umemcg::{Group, StatItem};
use umemcg_base::{LeafMutex, RankedMutex};

use crate::error::ControlError;
use crate::file_id::FileId;
use crate::holder_share::Holder;
use crate::peak::PeakNote;
use crate::permission::Credentials;
use crate::poll_watch::Watch;
use crate::trigger::Trigger;

/// A text of up to this many bytes is kept regardless of limits.
pub const KEPT_BYTES: u64 = 4096;

/// An open control file. Does not keep its group alive: after the group is removed, every use
/// fails.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) group: Weak<Group>,
    pub(crate) id: FileId,
    pub(crate) opener: Credentials,
    /// (C) The group that opened it; none for a file opened by the daemon itself.
    pub(crate) payer: Option<Weak<Group>>,
    /// (C) The opener, as bounds count it.
    pub(crate) holder: Holder,
    /// The text of the present sequence of reads.
    pub(crate) content: RankedMutex<Content>,
    /// The peak of this open file, once it was reset through the file.
    pub(crate) peak: LeafMutex<Option<Arc<PeakNote>>>,
    /// The trigger of a pressure file.
    pub(crate) trigger: RankedMutex<Option<Arc<Trigger>>>,
    /// For pollers.
    pub(crate) watch: Watch,
}

/// A text read piece by piece. A read at the end of the previous read sees the same text, even
/// after the group was removed; any other read generates a new text.
///
/// A text is kept until its end was read, and charged to the group that opened the file. A text
/// longer than [`KEPT_BYTES`] is not kept if the charge fails: the next piece then comes from a new
/// text.
#[derive(Debug, Default)]
#[doc(alias = "seq_file")]
pub(crate) struct Content {
    text: String,
    /// The end of the last read.
    next: usize,
    /// The last read came to the end.
    is_read: bool,
    charge: Option<AccountedCharge>,
}

impl Content {
    /// Creates a text to be read.
    pub(crate) fn new(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Returns whether a read at `offset` continues in this text.
    pub(crate) fn goes_on_at(&self, offset: usize) -> bool {
        offset > 0 && offset == self.next && (self.is_read || !self.text.is_empty())
    }

    /// Returns whether the text was read to its end.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    /// Returns at most `len` bytes from `offset`. The rest is kept and charged to `payer`. Also
    /// returns a charge for the caller to drop with no lock held.
    pub(crate) fn take(
        &mut self,
        offset: usize,
        len: usize,
        payer: &Group,
    ) -> (Vec<u8>, Option<AccountedCharge>) {
        let start = offset.min(self.text.len());
        let end = start.saturating_add(len).min(self.text.len());
        let piece = self.text.as_bytes()[start..end].to_vec();
        self.next = offset.max(end);
        self.is_read = end == self.text.len();
        if !self.is_read && (self.charge.is_some() || self.keep(payer)) {
            return (piece, None);
        }
        self.text = String::new();
        (piece, self.charge.take())
    }

    /// Charges the text. Returns false when the charge of a long text fails.
    fn keep(&mut self, payer: &Group) -> bool {
        let bytes = self.text.len() as u64;
        self.charge = match payer.try_charge(bytes) {
            Ok(charge) => Some(AccountedCharge::new(charge, StatItem::SlabUnreclaimable)),
            Err(_) if bytes > KEPT_BYTES => return false,
            Err(_) => Some(AccountedCharge::forced(payer, bytes, StatItem::SlabUnreclaimable)),
        };
        true
    }
}

impl OpenFile {
    /// Returns the group that opened the file, while there is one.
    pub fn payer(&self) -> Option<Arc<Group>> {
        self.payer.as_ref()?.upgrade().filter(|payer| !payer.is_dead())
    }

    /// Returns the opener, as bounds count it.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns the living group.
    ///
    /// # Errors
    /// [`ControlError::Gone`] when it has been removed.
    pub fn group(&self) -> Result<Arc<Group>, ControlError> {
        self.group.upgrade().filter(|group| !group.is_dead()).ok_or(ControlError::Gone)
    }

    /// Returns whether a write may wait for reclaim. Such a write needs a thread that may block.
    pub fn write_reclaims(&self) -> bool {
        self.id.write_reclaims
    }

    /// Returns the file's name.
    pub fn name(&self) -> &'static str {
        self.id.name
    }
}
