//! The versions of Linux's interface that files come from, and the choice of those that a tree
//! shows.

/// The generation of the interface that a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The names of version 1, which the mails use.
    V1,
    /// The names of version 2.
    V2,
    /// The same name in both.
    Both,
    /// Neither: Linux has no such file.
    Own,
}

/// The version whose files the tree shows, and whose meaning a name has that is in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// Those of version 1 alone.
    V1,
    /// Those of version 2 alone.
    V2,
    /// All in one directory; `memory.stat` has the names of both.
    #[default]
    Both,
}

impl Style {
    /// Returns whether there is a file of that generation. Our own can be opened whatever the
    /// style.
    pub(crate) fn has(self, version: Version) -> bool {
        match version {
            Version::V1 => self != Self::V2,
            Version::V2 => self != Self::V1,
            Version::Both | Version::Own => true,
        }
    }

    /// Returns whether it is listed: in a strict style our own are not, so that a directory looks
    /// as Linux's does.
    pub(crate) fn lists(self, version: Version) -> bool {
        self.has(version) && (self == Self::Both || version != Version::Own)
    }
}
