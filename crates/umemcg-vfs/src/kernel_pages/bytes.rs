//! Changes of a byte range of a file, translated to the pages kept by the kernel.

use std::sync::Arc;

use umemcg_base::PAGE_SIZE_U64;

use super::KernelPages;
use crate::page_windows::{PAGES_END, page_range};

impl KernelPages {
    /// Notes a truncation of the file to `len`: the kernel drops the pages beyond.
    pub(crate) fn was_cut(&self, len: u64) {
        self.forget(&(len.div_ceil(PAGE_SIZE_U64)..PAGES_END));
    }

    /// Notes a hole or zeroes in place of these bytes: the kernel drops the whole pages among them.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        self.forget(&(offset.div_ceil(PAGE_SIZE_U64)..offset.saturating_add(len) / PAGE_SIZE_U64));
    }

    /// Returns whether the kernel may have some of these bytes, or a request may be adding some.
    pub(crate) fn may_have_bytes(&self, offset: u64, len: u64) -> bool {
        self.may_have(&page_range(offset, len))
    }

    /// Has the kernel drop the pages of these bytes. Calls `then` afterwards, on a thread that
    /// serves no requests. Never waits.
    pub(crate) fn drop_bytes(self: &Arc<Self>, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        self.drop_range(page_range(offset, len), then);
    }
}
