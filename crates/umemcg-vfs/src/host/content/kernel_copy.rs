//! The copy of the content that the kernel keeps in its page cache.

use std::sync::Arc;
use std::time::Duration;

use super::Content;
use crate::kernel_pages::KernelPages;

impl Content {
    /// Returns whether the kernel caches the pages of the opens that there are. The first of them
    /// decides with `decide`: a page that the kernel has by one would be written past by another.
    pub(crate) fn kernel_caches(&self, decide: impl FnOnce() -> bool) -> bool {
        *self.opens.lock().kernel_caches.get_or_insert_with(decide)
    }

    /// Returns the pages that the kernel keeps, if it may have some.
    pub(crate) fn kernel_pages(&self) -> Option<&Arc<KernelPages>> {
        self.kernel_pages.get()
    }

    /// Returns the pages that the kernel keeps, which are made when there are none.
    pub(crate) fn kernel_pages_or(&self, make: impl FnOnce() -> Arc<KernelPages>) -> &Arc<KernelPages> {
        self.kernel_pages.get_or_init(make)
    }

    /// Calls `tell`, the first time, if the file was changed less than `time` before its content
    /// was made: the kernel may have been told of it before that change. Returns when that has been
    /// done.
    pub(crate) fn tell_if_new_within(&self, time: Duration, tell: impl FnOnce()) {
        self.is_first_told.get_or_init(|| {
            let age_ns = self.host_dir.clock.now().as_nanoseconds().saturating_sub(self.first_change_ns);
            if age_ns < i64::try_from(time.as_nanos()).unwrap_or(i64::MAX) {
                tell();
            }
        });
    }

    /// Notes that the file ends at `len` now.
    pub(crate) fn was_cut(&self, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.was_cut(len);
        }
    }

    /// Notes that bytes were replaced by a hole or zeroes.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.was_emptied(offset, len);
        }
    }

    /// Returns whether the kernel may have some of these bytes.
    pub(crate) fn kernel_may_have(&self, offset: u64, len: u64) -> bool {
        self.kernel_pages().is_some_and(|pages| pages.may_have_bytes(offset, len))
    }

    /// Calls `then` when the kernel has dropped what it may have of these bytes. Never waits.
    pub(crate) fn drop_from_kernel(&self, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        match self.kernel_pages() {
            Some(pages) => pages.drop_bytes(offset, len, then),
            None => then(),
        }
    }
}
