//! The versions of Linux's interface, and the choice of versions shown by a tree.

/// The generation of the interface with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The names of version 1, as used in the mails.
    V1,
    /// The names of version 2.
    V2,
    /// The same name in both.
    Both,
    /// Neither: Linux has no such file.
    Own,
}

/// The version of the files shown by the tree. It also decides the meaning of a name in both
/// versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// The files of version 1 alone.
    V1,
    /// The files of version 2 alone.
    V2,
    /// All in one directory; `memory.stat` has the names of both.
    #[default]
    Both,
}

impl Style {
    /// Returns whether files of that generation exist. Our own files can be opened in every style.
    pub(crate) fn has(self, version: Version) -> bool {
        match version {
            Version::V1 => self != Self::V2,
            Version::V2 => self != Self::V1,
            Version::Both | Version::Own => true,
        }
    }

    /// Returns whether files of that generation are listed. A strict style does not list our own,
    /// so a directory looks like Linux's.
    pub(crate) fn lists(self, version: Version) -> bool {
        self.has(version) && (self == Self::Both || version != Version::Own)
    }
}
