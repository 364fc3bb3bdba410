//! The calls of `sys.rs` on systems other than Linux: hints without an effect.

use std::io;

/// Returns false: only GNU's allocator on Linux has such a limit.
pub fn limit_heap_arenas(_nr: u32) -> bool {
    false
}

/// Does nothing.
pub fn trim_heap() {}

/// Does nothing.
pub fn prefer_huge_pages(_address: usize, _bytes: usize) {}

/// Returns 0: only Linux shows threads by id.
pub fn thread_id() -> u32 {
    0
}

/// Does nothing.
///
/// # Errors
/// Never.
pub fn yield_to_wakers() -> io::Result<()> {
    Ok(())
}
