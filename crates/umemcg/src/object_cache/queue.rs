//! The lists that objects wait on.

/// Objects are on this node: an allocator does not say where its memory lies.
pub(super) const NODE: usize = 0;

/// The list that an entry waits on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// New, and not known to be of use.
    Probation = 0,
    /// Used after it came, or asked for again soon after it went.
    Main = 1,
}
