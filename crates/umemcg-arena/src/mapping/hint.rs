//! Hints of a mapping to the operating system about its use.

/// Advice to the kernel on backing or dumping a mapping. The kernel may refuse; everything works
/// without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Huge pages: a block is in use as a whole.
    HugePages,
    /// Small pages: the table is sparse, and a huge page under one word would be waste.
    #[cfg_attr(loom, allow(dead_code))]
    SmallPages,
    /// No copy in core files: the contents are tenants' data.
    NotInCoreFiles,
}
