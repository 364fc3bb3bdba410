//! How the kernel caches the content of an open file.

use std::sync::Arc;
use std::time::Duration;

use umemcg::Group;

use super::OpenFile;
use crate::kernel_io::{KernelCaching, KernelIo, Subject};
use crate::volume::VolumeFile;

/// Added to the lifetime of attributes in the kernel, since a host's clock and its stamps are
/// coarse.
const STAMP_SLACK: Duration = Duration::from_secs(1);

impl OpenFile {
    /// Decides how the kernel caches the file, for [`VolumeFile::kernel_caching`].
    pub(crate) fn decide_kernel_caching(&self, is_new: bool) -> KernelCaching {
        let (content, group) = (&self.content, self.group());
        let Some(pages) = self.inodes.kernel_pages(self.node(), content, group) else {
            return KernelCaching::Bypass;
        };
        pages.note_open();
        let kernel = self.inodes.kernel.get();
        let is_silent = self.inodes.opens_silently();
        let is_worth = || pages.are_worth_caching(group, content.file.len(), self.is_writable());
        let is_cached = content.kernel_caches(|| is_silent || is_worth());
        content.file.set_kept_above(is_cached);
        if let Some(kernel) = kernel.filter(|kernel| !kernel.is_exclusive()) {
            content.tell_if_new_within(kernel.attribute_lifetime() + STAMP_SLACK, || {
                // The kernel has no pages of the file, but may know its old length.
                if !is_new {
                    kernel.attributes_changed(self.node());
                }
            });
        }
        if pages.change().is_none() {
            return if is_cached { KernelCaching::Keep } else { KernelCaching::Bypass };
        }
        // This also invalidates the attributes in the kernel. The message is sent once for each
        // change: see `when_refillable`.
        pages.drop_if_changed();
        if is_cached { KernelCaching::Refill } else { KernelCaching::Bypass }
    }

    /// For [`VolumeFile::begin_kernel_io`].
    pub(crate) fn kernel_io(
        &self,
        offset: u64,
        len: u64,
        is_write: bool,
        payer: &Arc<Group>,
    ) -> Option<KernelIo> {
        let pages = self.inodes.kernel_pages(self.node(), &self.content, payer)?;
        Some(KernelIo::begin(
            Arc::clone(pages),
            Subject::File(Arc::clone(&self.content.file)),
            (offset, len),
            is_write,
            payer,
        ))
    }

    /// For [`VolumeFile::when_refillable`].
    pub(crate) fn when_current(&self, then: Box<dyn FnOnce() + Send>) {
        match self.content.kernel_pages() {
            Some(pages) => {
                let (me, pages) = (Arc::clone(pages), Arc::clone(pages));
                pages.when_current(Box::new(move || me.when_dropped(then)));
            }
            None => then(),
        }
    }
}
