//! The names that led to an inode. Directories have one, nearly all files, too; hard links have a
//! few.

use crate::attr::NodeId;
use crate::metadata_charge::{MetadataCharge, NAME_BYTES};

/// Bytes of a name that an entry's own charge covers.
const SHORT_BYTES_MAX: usize = 40;
/// Room for a long name, or for a further one.
pub(crate) type NameCharge = MetadataCharge<NAME_BYTES>;

/// Returns whether a name costs more than an entry's own charge covers.
pub(crate) fn is_long(name: &[u8]) -> bool {
    name.len() > SHORT_BYTES_MAX
}

/// Most names remembered per inode; the oldest is forgotten first. A file with more names is still
/// found by these.
pub(crate) const NAMES_MAX: usize = 8;

/// A name that led to an inode.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) parent: NodeId,
    pub(crate) name: Box<[u8]>,
    /// For a long name or a further one; held until the name is forgotten.
    pub(crate) charge: Option<NameCharge>,
}

/// Names of an inode; nearly all have one.
#[derive(Debug, Default)]
pub(crate) struct Names {
    newest: Option<Name>,
    /// Oldest first.
    #[allow(clippy::box_collection)] // Eight bytes in every entry instead of twenty-four.
    older: Option<Box<Vec<Name>>>,
}

impl Names {
    pub(crate) fn contains(&self, parent: NodeId, name: &[u8]) -> bool {
        let is = |n: &Name| n.parent == parent && *n.name == *name;
        self.newest.as_ref().is_some_and(is) || self.older.as_ref().is_some_and(|o| o.iter().any(is))
    }

    /// Adds a name; hands back what it displaces.
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

    /// Returns the charges of the names that have one.
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
