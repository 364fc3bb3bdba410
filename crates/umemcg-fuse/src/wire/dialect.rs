//! The parts of the protocol that depend on the handshake.

/// The layout of the messages of one connection, by protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// SETXATTR has four words instead of two.
    pub setxattr_ext: bool,
}
