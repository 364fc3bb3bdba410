//! The lists of objects.

/// The list of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// New, and not yet used.
    Probation = 0,
    /// Used after the insert, or inserted again soon after eviction.
    Main = 1,
}
