//! What the kernel may cache of a mount, and for how long.

use std::time::Duration;

/// What the kernel may cache, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// The lifetime of a name that exists.
    pub entry: Duration,
    /// The lifetime of a name that does not exist. With zero the kernel asks every time.
    pub absent: Duration,
    /// The lifetime of a node's attributes.
    pub attr: Duration,
    /// Pages of files, until they are asked for, charged to the groups whose requests brought them
    /// there. False: every read and write of a file comes here.
    pub pages: bool,
    /// No other program changes the directories, so that an open need not look at them.
    pub exclusive: bool,
    /// Where other programs' changes can be watched and told, what exists and what does not lives
    /// without a limit, and attributes for a minute; the times above are for answers that a change
    /// may have overtaken, and for where they cannot. Without effect if attributes have no
    /// lifetime: then the kernel is to ask each time.
    pub watch: bool,
    /// Files are opened without a request. Only for an exclusive mount of one volume with pages in
    /// the kernel: a volume that may be removed has to know what is open.
    pub silent_opens: bool,
}

/// Longer than any mount lasts.
const FOREVER: Duration = Duration::from_secs(1 << 30);

impl Lifetimes {
    /// Returns the lifetimes of a mount whose directories no other program changes: names that
    /// exist or do not, and attributes, without a limit.
    pub fn exclusive() -> Self {
        Self {
            entry: FOREVER,
            absent: FOREVER,
            attr: FOREVER,
            pages: false,
            exclusive: true,
            watch: false,
            silent_opens: false,
        }
    }
}

impl Lifetimes {
    /// Returns the lifetimes of an answer about a volume whose changes by other programs are told:
    /// without a limit, but of attributes, since nothing tells of stores through a mapping that
    /// stays.
    pub(super) fn told(self) -> Self {
        Self { entry: FOREVER, absent: FOREVER, attr: Duration::from_secs(60), ..self }
    }

    /// Returns the lifetimes of an answer about such a volume that a change may have overtaken: a
    /// second at most.
    pub(super) fn overtaken(self) -> Self {
        let second = Duration::from_secs(1);
        Self { entry: self.entry.min(second), absent: Duration::ZERO, attr: self.attr.min(second), ..self }
    }
}

impl Default for Lifetimes {
    /// Returns one second for names and attributes, so that a warm `stat` does not reach the
    /// daemon, zero for names that do not exist, no limit where changes are watched, and no pages.
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            entry: second,
            absent: Duration::ZERO,
            attr: second,
            pages: false,
            exclusive: false,
            watch: true,
            silent_opens: false,
        }
    }
}
