//! The lists of objects.

/// The node of all objects: an allocator does not report the node of its memory.
pub(super) const NODE: usize = 0;

/// The list of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// New, and not yet used.
    Probation = 0,
    /// Used after the insert, or inserted again soon after eviction.
    Main = 1,
}
