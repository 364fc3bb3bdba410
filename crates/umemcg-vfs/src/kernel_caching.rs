//! How the kernel caches the content of an open file.

use std::sync::Arc;
use std::time::Duration;

use umemcg::Group;
use umemcg_base::PAGE_SIZE_U64;

use crate::attr::NodeId;
use crate::content::Content;
use crate::kernel_io::{KernelCaching, KernelIo, page_range};
use crate::kernel_pages::KernelPages;
use crate::open_file::OpenFile;
use crate::page_windows::PAGES_END;
use crate::resolve::Shared;
use crate::volume::VolumeFile;

/// Room that a group has at least if the kernel caches files for it: it reads ahead, and a request
/// of the largest size must find room beside others.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Added to the time for which the kernel believes attributes, since a host's clock and its stamps
/// are coarse.
const STAMP_SLACK: Duration = Duration::from_secs(1);

/// Returns whether a file of this length finds room in a group: one that does not would push out
/// all else, itself included.
fn has_room(group: &Group, len: u64) -> bool {
    let room = group.ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX);
    room >= ROOM_BYTES_MIN && len <= room
}

impl Shared {
    /// Returns the pages that the kernel keeps of a file, if it may keep any on this volume.
    fn kernel_pages<'c>(
        &self,
        node: NodeId,
        content: &'c Content,
        group: &Group,
    ) -> Option<&'c Arc<KernelPages>> {
        let lists = self.kernel_page_lists.get()?;
        Some(content.kernel_pages_or(|| KernelPages::new(lists, node, group)))
    }
}

impl OpenFile {
    /// Decides how the kernel caches the file, for [`VolumeFile::kernel_caching`].
    pub(crate) fn decide_kernel_caching(&self, is_new: bool) -> KernelCaching {
        let (content, group) = (&self.content, self.group());
        let Some(pages) = self.shared.kernel_pages(self.node(), content, group) else {
            return KernelCaching::Bypass;
        };
        let is_cached = content.kernel_caches(|| has_room(group, content.file.len()));
        content.file.set_kept_above(is_cached);
        let kernel = self.shared.kernel.get();
        if let Some(kernel) = kernel.filter(|kernel| !kernel.is_exclusive())
            && content.was_new_within(kernel.attribute_lifetime() + STAMP_SLACK)
            && !is_new
        {
            // Of its pages it has none, but it may take the file to be as long as it was then.
            kernel.attributes_changed(self.node());
        }
        if pages.change().is_none() {
            return if is_cached { KernelCaching::Keep } else { KernelCaching::Bypass };
        }
        // Until the kernel says that it has dropped all from before the change.
        pages.drop_if_changed();
        match kernel.filter(|_| is_cached) {
            Some(kernel) => {
                kernel.attributes_changed(self.node());
                KernelCaching::Refill
            }
            None => KernelCaching::Bypass,
        }
    }

    /// For [`VolumeFile::begin_kernel_io`].
    pub(crate) fn kernel_io(
        &self,
        offset: u64,
        len: u64,
        is_write: bool,
        payer: &Arc<Group>,
    ) -> Option<KernelIo> {
        let pages = self.shared.kernel_pages(self.node(), &self.content, payer)?;
        Some(KernelIo::begin(
            Arc::clone(pages),
            Arc::clone(&self.content.file),
            (offset, len),
            is_write,
            payer,
        ))
    }
}

impl OpenFile {
    /// For [`VolumeFile::when_refillable`].
    pub(crate) fn when_none_asked(&self, then: Box<dyn FnOnce() + Send>) {
        match self.content.kernel_pages() {
            Some(pages) => pages.when_none_asked(then),
            None => then(),
        }
    }
}

impl Content {
    /// Notes that the file ends at `len` now: the kernel drops what it had beyond.
    pub(crate) fn was_cut(&self, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.forget(&(len.div_ceil(PAGE_SIZE_U64)..PAGES_END));
        }
    }

    /// Notes that bytes were replaced by a hole or zeroes: the kernel drops the whole pages of
    /// them.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.forget(&(offset.div_ceil(PAGE_SIZE_U64)..(offset + len) / PAGE_SIZE_U64));
        }
    }

    /// Returns whether the kernel may have some of these bytes.
    pub(crate) fn kernel_may_have(&self, offset: u64, len: u64) -> bool {
        self.kernel_pages().is_some_and(|pages| pages.may_have(&page_range(offset, len)))
    }

    /// Calls `then` when the kernel has dropped what it may have of these bytes. Never waits.
    pub(crate) fn drop_from_kernel(&self, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        match self.kernel_pages() {
            Some(pages) => pages.drop_range(page_range(offset, len), then),
            None => then(),
        }
    }
}
