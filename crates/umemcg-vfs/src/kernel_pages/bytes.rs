//! What happens to bytes of a file, as what happens to the pages that the kernel keeps of them.

use std::sync::Arc;

use umemcg_base::PAGE_SIZE_U64;

use super::KernelPages;
use crate::page_windows::{PAGES_END, page_range};

impl KernelPages {
    /// Notes that the file ends at `len` now: the kernel drops what it had beyond.
    pub(crate) fn was_cut(&self, len: u64) {
        self.forget(&(len.div_ceil(PAGE_SIZE_U64)..PAGES_END));
    }

    /// Notes that bytes were replaced by a hole or zeroes: the kernel drops the whole pages of
    /// them.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        self.forget(&(offset.div_ceil(PAGE_SIZE_U64)..offset.saturating_add(len) / PAGE_SIZE_U64));
    }

    /// Returns whether the kernel may have some of these bytes, or a request may be putting some
    /// there.
    pub(crate) fn may_have_bytes(&self, offset: u64, len: u64) -> bool {
        self.may_have(&page_range(offset, len))
    }

    /// Has the kernel drop what it may have of these bytes, and calls `then` when it has, on a
    /// thread that serves no requests. Never waits.
    pub(crate) fn drop_bytes(self: &Arc<Self>, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        self.drop_range(page_range(offset, len), then);
    }
}
