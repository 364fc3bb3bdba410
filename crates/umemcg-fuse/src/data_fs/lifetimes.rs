//! The lifetimes of a mount's names, attributes and pages in the kernel's caches.

use std::time::Duration;

/// The lifetimes of names, attributes and pages in the kernel's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// The lifetime of an existing name.
    pub entry: Duration,
    /// The lifetime of a missing name. With zero the kernel asks every time.
    pub absent: Duration,
    /// The lifetime of a node's attributes.
    pub attr: Duration,
    /// The kernel keeps pages of files, until asked to drop them, charged to the groups of the
    /// requests that brought them there. If false, every read and write of a file comes here.
    pub pages: bool,
    /// No other program changes the directories, so an open need not look at them.
    pub exclusive: bool,
    /// The kernel is notified of other programs' changes, where these can be watched. Existing and
    /// missing names then have no time limit, and attributes live for a minute. The times above
    /// apply to answers possibly overtaken by a change, and where no watch is possible. Without
    /// effect if attributes have no lifetime: the kernel must then ask each time.
    pub watch: bool,
    /// Files are opened without a request. Only for an exclusive mount of one volume with pages in
    /// the kernel: a removable volume has to know its open files.
    pub silent_opens: bool,
}

/// Longer than any mount lasts.
const FOREVER: Duration = Duration::from_secs(1 << 30);

impl Lifetimes {
    /// Returns the lifetimes of an exclusive mount: existing and missing names, and attributes,
    /// have no limit.
    pub fn exclusive() -> Self {
        let [entry, absent, attr] = [FOREVER; 3];
        Self { entry, absent, attr, exclusive: true, watch: false, ..Self::default() }
    }

    /// Returns the lifetimes of an answer about a volume with notifications of other programs'
    /// changes. Names have no limit. Attributes do, since stores through a lasting mapping cause no
    /// notification.
    pub(super) fn told(self) -> Self {
        Self { entry: FOREVER, absent: FOREVER, attr: Duration::from_secs(60), ..self }
    }

    /// Returns the lifetimes of an answer about such a volume, possibly overtaken by a change: a
    /// second at most.
    pub(super) fn overtaken(self) -> Self {
        let second = Duration::from_secs(1);
        Self { entry: self.entry.min(second), absent: Duration::ZERO, attr: self.attr.min(second), ..self }
    }
}

impl Default for Lifetimes {
    /// Returns one second for names and attributes, so that a warm `stat` does not reach the
    /// daemon, zero for missing names, no limit where changes are watched, and no pages.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_believed_for_a_minute_at_most() {
        for lifetimes in [Lifetimes::default(), Lifetimes { attr: FOREVER, ..Lifetimes::default() }] {
            // Names are invalidated by messages; a store through a mapping causes none.
            assert_eq!((lifetimes.told().entry, lifetimes.told().absent), (FOREVER, FOREVER));
            assert_eq!(lifetimes.told().attr, Duration::from_secs(60));
            assert_eq!(lifetimes.overtaken().attr, Duration::from_secs(1));
        }
    }
}
