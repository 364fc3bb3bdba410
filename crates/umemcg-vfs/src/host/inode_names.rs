//! The names of an inode's lookups: one for a directory and for nearly every file, several for a
//! file with hard links.

use crate::attr::NodeId;
use crate::metadata_charge::{MetadataCharge, NAME_BYTES};

/// The longest name covered by the charge of an entry, in bytes.
const SHORT_BYTES_MAX: usize = 40;
/// The charge for a long name, or for each name after the first.
pub(crate) type NameCharge = MetadataCharge<NAME_BYTES>;

/// Returns whether a name is too long for the charge of an entry.
pub(crate) fn is_long(name: &[u8]) -> bool {
    name.len() > SHORT_BYTES_MAX
}

/// The most names remembered per inode; the oldest is forgotten first. A file with more names is
/// still found by these.
pub(crate) const NAMES_MAX: usize = 8;

/// A name under which an inode was looked up.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) parent: NodeId,
    pub(crate) name: Box<[u8]>,
    /// For a long or a further name; held until the name is forgotten.
    pub(crate) charge: Option<NameCharge>,
}

/// The names of an inode; nearly all have one.
#[derive(Debug, Default)]
pub(crate) struct InodeNames {
    newest: Option<Name>,
    /// Oldest first.
    #[allow(clippy::box_collection)] // Eight bytes in every entry instead of twenty-four.
    older: Option<Box<Vec<Name>>>,
}

impl InodeNames {
    pub(crate) fn contains(&self, parent: NodeId, name: &[u8]) -> bool {
        let is = |n: &Name| n.parent == parent && *n.name == *name;
        self.newest.as_ref().is_some_and(is) || self.older.as_ref().is_some_and(|o| o.iter().any(is))
    }

    /// Adds a name. Returns the displaced name, if any.
    pub(crate) fn add(&mut self, name: Name, max: usize) -> Option<Name> {
        let previous = self.newest.replace(name)?;
        if max == 1 {
            return Some(previous);
        }
        let older = self.older.get_or_insert_default();
        older.push(previous);
        (older.len() >= max).then(|| older.remove(0))
    }

    pub(crate) fn remove(&mut self, parent: NodeId, name: &[u8]) -> Option<Name> {
        let is = |n: &Name| n.parent == parent && *n.name == *name;
        if self.newest.as_ref().is_some_and(is) {
            let next = self.older.as_mut().and_then(|o| o.pop());
            return std::mem::replace(&mut self.newest, next);
        }
        let older = self.older.as_mut()?;
        let at = older.iter().position(is)?;
        Some(older.remove(at))
    }

    /// Returns the names, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Name> {
        self.newest.iter().chain(self.older.iter().flat_map(|o| o.iter().rev()))
    }

    /// Returns the charges of the separately charged names.
    pub(crate) fn charges_mut(&mut self) -> impl Iterator<Item = &mut NameCharge> {
        let older = self.older.iter_mut().flat_map(|o| o.iter_mut());
        self.newest.iter_mut().chain(older).filter_map(|name| name.charge.as_mut())
    }

    pub(crate) fn take(&mut self) -> Vec<Name> {
        let mut all: Vec<Name> = self.older.take().map(|o| *o).unwrap_or_default();
        all.extend(self.newest.take());
        all
    }
}
