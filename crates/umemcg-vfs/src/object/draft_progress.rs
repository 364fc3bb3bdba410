//! The progress of a draft: how many changes were made and stored, and the state to write to its
//! record.

use super::draft_record::DraftState;
use super::file_labels::FileLabels;
use crate::bucket::ObjectInfo;

/// The fate of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is stored under the name of its node.
    Stored,
    /// Its name was removed.
    Nameless,
    /// Another change of the object came first.
    Lost,
}

/// The progress of a draft.
#[derive(Debug)]
pub(super) struct Progress {
    /// Counts changes, each when it is done.
    pub(super) nr_changes: u64,
    /// The number of changes in the store.
    pub(super) nr_stored: u64,
    /// The greatest number known from a mark in the store.
    pub(super) nr_marked: u64,
    /// The number of changes when the last upload began.
    pub(super) nr_tried: u64,
    /// An object of its name may be in the store.
    pub(super) may_have_object: bool,
    /// Changes in progress.
    pub(super) nr_changing: u32,
    /// The key it is stored under.
    pub(super) key: String,
    pub(super) is_noted: bool,
    pub(super) fate: Fate,
    /// The base version: the object version that it replaces; `None` for an object not stored yet.
    pub(super) base: Option<ObjectInfo>,
    pub(super) labels: FileLabels,
    /// The key and the id of a multipart upload, until it is over.
    pub(super) noted_upload: Option<(String, String)>,
}

/// The known state of a draft in the store.
#[derive(Debug, Clone)]
pub(super) struct Before {
    /// The base version of the draft; `None` for an object not stored yet.
    pub(super) base: Option<ObjectInfo>,
    /// The greatest number known from a mark in the store. Only a mark with a greater number
    /// belongs to an upload whose answer was lost. Others are on copies made by another program.
    nr_marked: u64,
}

impl Before {
    /// Returns the number of changes in the mark of `there`, if the object comes from an upload of
    /// the draft, with these marks, whose answer was lost.
    pub(super) fn number_of_unknown(&self, marks: &str, there: &ObjectInfo) -> Option<u64> {
        number_of(there, marks).filter(|nr| *nr > self.nr_marked)
    }
}

/// Returns the number of changes in the mark of an object, if it is one of these marks.
pub(super) fn number_of(info: &ObjectInfo, marks: &str) -> Option<u64> {
    info.mark()?.strip_prefix(marks)?.parse().ok()
}

impl Progress {
    pub(super) fn new(base: Option<ObjectInfo>, labels: FileLabels, key: &str) -> Self {
        Self {
            nr_changes: 0,
            nr_stored: 0,
            nr_marked: 0,
            nr_tried: 0,
            may_have_object: base.is_some(),
            nr_changing: 0,
            key: key.to_owned(),
            is_noted: false,
            fate: Fate::Stored,
            base,
            labels,
            noted_upload: None,
        }
    }

    /// Returns whether it has unsaved changes.
    pub(super) fn is_unsaved(&self) -> bool {
        self.fate == Fate::Stored && self.nr_changes != self.nr_stored
    }

    /// Returns its known state in the store.
    pub(super) fn before(&self) -> Before {
        Before { base: self.base.clone(), nr_marked: self.nr_marked }
    }

    /// Returns the state for the record.
    pub(super) fn state(&self) -> DraftState {
        match self.fate {
            Fate::Stored if self.is_noted => DraftState::Staged,
            Fate::Stored | Fate::Nameless => DraftState::Stored,
            Fate::Lost => DraftState::Staged,
        }
    }
}
