//! How far a draft is: its changes, those that were accepted, those that the store has; and what
//! its record has to say of that.

use super::bucket::ObjectInfo;
use super::draft_record::{DraftState, Promise};
use super::file_labels::FileLabels;

/// What is to become of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is stored under the name of its node.
    Stored,
    /// Its name was removed.
    Nameless,
    /// Another change of the object came first.
    Lost,
}

/// Most changes that an earlier daemon may have made, and stored, beyond those that it accepted.
const NR_UNKNOWN_MAX: u64 = 1 << 40;

/// How far a draft is.
#[derive(Debug)]
pub(super) struct Progress {
    /// Counts changes, each when it is done.
    pub(super) nr_changes: u64,
    /// Numbers up to this one are of changes that an earlier daemon may have made.
    pub(super) nr_unknown: u64,
    /// As many as the store has.
    pub(super) nr_stored: u64,
    /// The greatest number in a mark that is known to be in the store.
    pub(super) nr_marked: u64,
    /// As many as there were when an upload was begun last.
    pub(super) nr_tried: u64,
    /// An object of its name may be in the store.
    pub(super) may_have_object: bool,
    /// Changes that are being made.
    pub(super) nr_changing: u32,
    /// As many as were accepted last, and the length then.
    pub(super) accepted: (u64, u64),
    /// The record on disk may say that it is accepted.
    pub(super) has_promise: bool,
    /// Its object is being removed: nothing more is accepted.
    pub(super) is_leaving: bool,
    /// The key that it is stored under.
    pub(super) key: String,
    pub(super) is_noted: bool,
    pub(super) fate: Fate,
    /// The version that it stands on; none while it is not in the store.
    pub(super) base: Option<ObjectInfo>,
    pub(super) labels: FileLabels,
    /// The key and the id of an upload in parts that was begun, until it is over.
    pub(super) noted_upload: Option<(String, String)>,
}

/// What the store is known to have of a draft.
#[derive(Debug, Clone)]
pub(super) struct Before {
    /// The version that the draft stands on; `None` while it is not in the store.
    pub(super) base: Option<ObjectInfo>,
    /// The greatest number in a mark that is known to be there: only one with a greater number is
    /// of an upload whose answer was lost. Others are copies that another program has made.
    nr_marked: u64,
}

impl Before {
    /// Returns the number of changes in the mark of an object, if it is of an upload of the draft,
    /// with these marks, whose answer was lost.
    pub(super) fn number_of_unknown(&self, marks: &str, there: &ObjectInfo) -> Option<u64> {
        number_of(there, marks).filter(|nr| *nr > self.nr_marked)
    }
}

/// Returns the number of changes that the mark of an object tells, if it is of these.
pub(super) fn number_of(info: &ObjectInfo, marks: &str) -> Option<u64> {
    info.mark()?.strip_prefix(marks)?.parse().ok()
}

impl Progress {
    pub(super) fn new(base: Option<ObjectInfo>, labels: FileLabels, key: &str) -> Self {
        Self {
            nr_changes: 0,
            nr_unknown: 0,
            nr_stored: 0,
            nr_marked: 0,
            nr_tried: 0,
            may_have_object: base.is_some(),
            nr_changing: 0,
            accepted: (0, 0),
            has_promise: false,
            is_leaving: false,
            key: key.to_owned(),
            is_noted: false,
            fate: Fate::Stored,
            base,
            labels,
            noted_upload: None,
        }
    }

    /// Takes over what an earlier daemon accepted. It may have stored more, with greater numbers,
    /// which must not be taken for the numbers of what comes now.
    pub(super) fn adopt(&mut self, promise: &Promise) {
        self.nr_changes = promise.nr_changes;
        self.nr_unknown = promise.nr_changes.saturating_add(NR_UNKNOWN_MAX);
        self.accepted = (promise.nr_changes, promise.len);
        (self.has_promise, self.is_noted, self.may_have_object) = (true, true, true);
    }

    /// Returns whether it has changes that the store has not.
    pub(super) fn is_unsaved(&self) -> bool {
        self.fate == Fate::Stored && self.nr_changes != self.nr_stored
    }

    /// Returns what the store is known to have.
    pub(super) fn before(&self) -> Before {
        Before { base: self.base.clone(), nr_marked: self.nr_marked }
    }

    /// Returns the state for the record.
    pub(super) fn state(&self, mark: &str) -> DraftState {
        let (nr_changes, len) = self.accepted;
        match self.fate {
            Fate::Stored if nr_changes > self.nr_stored && !self.is_leaving => {
                DraftState::Accepted(self.promise(nr_changes, len, mark))
            }
            Fate::Stored if self.is_noted => DraftState::Staged,
            Fate::Stored | Fate::Nameless => DraftState::Stored,
            Fate::Lost => DraftState::Staged,
        }
    }

    pub(super) fn promise(&self, nr_changes: u64, len: u64, mark: &str) -> Promise {
        Promise { nr_changes, len, mark: mark.to_owned(), metadata: self.labels.to_metadata() }
    }
}
