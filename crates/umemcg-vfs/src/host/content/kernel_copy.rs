//! The copy of the content in the kernel's page cache.

use std::sync::Arc;
use std::time::Duration;

use super::Content;
use crate::kernel_pages::KernelPages;

impl Content {
    /// Returns whether the kernel caches the pages of the present opens. The first of them decides
    /// with `decide`: if they differed, a write through an uncached open would bypass the kernel's
    /// page.
    pub(crate) fn kernel_caches(&self, decide: impl FnOnce() -> bool) -> bool {
        *self.opens.lock().kernel_caches.get_or_insert_with(decide)
    }

    /// Returns the kernel's pages of the file, if it may have some.
    pub(crate) fn kernel_pages(&self) -> Option<&Arc<KernelPages>> {
        self.kernel_pages.get()
    }

    /// Returns the kernel's pages of the file, creating the record with `make` if there is none.
    pub(crate) fn kernel_pages_or(&self, make: impl FnOnce() -> Arc<KernelPages>) -> &Arc<KernelPages> {
        self.kernel_pages.get_or_init(make)
    }

    /// On the first call, calls `tell` if the file was changed less than `time` before its content
    /// was created: the kernel may have attributes from before that change. Other calls return when
    /// that is done.
    pub(crate) fn tell_if_new_within(&self, time: Duration, tell: impl FnOnce()) {
        self.is_first_told.get_or_init(|| {
            let age_ns = self.host_dir.clock.now().as_nanoseconds().saturating_sub(self.first_change_ns);
            if age_ns < i64::try_from(time.as_nanos()).unwrap_or(i64::MAX) {
                tell();
            }
        });
    }

    /// Notes a truncation of the file to `len`.
    pub(crate) fn was_cut(&self, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.was_cut(len);
        }
    }

    /// Notes a hole or zeroes in place of these bytes.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.was_emptied(offset, len);
        }
    }

    /// Returns whether the kernel may have some of these bytes.
    pub(crate) fn kernel_may_have(&self, offset: u64, len: u64) -> bool {
        self.kernel_pages().is_some_and(|pages| pages.may_have_bytes(offset, len))
    }

    /// Calls `then` when the kernel has dropped its pages of these bytes. Never waits.
    pub(crate) fn drop_from_kernel(&self, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        match self.kernel_pages() {
            Some(pages) => pages.drop_bytes(offset, len, then),
            None => then(),
        }
    }
}
