//! The parts of the protocol that depend on the handshake.

/// How the messages of one connection are spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// SETXATTR has four words instead of two.
    pub setxattr_ext: bool,
}
