//! How the kernel caches the content of an open file.

use std::sync::Arc;
use std::time::Duration;

use umemcg::Group;

use super::OpenFile;
use crate::kernel_io::{KernelCaching, KernelIo};
use crate::kernel_pages::KernelPages;
use crate::volume::VolumeFile;

/// Room that a group has at least if the kernel caches files for it: it reads ahead, and a request
/// of the largest size must find room beside others.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Added to the time for which the kernel believes attributes, since a host's clock and its stamps
/// are coarse.
const STAMP_SLACK: Duration = Duration::from_secs(1);

/// Returns the bytes that a group may have at most.
fn room_of(group: &Group) -> u64 {
    group.ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX)
}

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
        let is_cached = content.kernel_caches(|| is_silent || self.is_worth_caching(pages));
        content.file.set_kept_above(is_cached);
        if let Some(kernel) = kernel.filter(|kernel| !kernel.is_exclusive()) {
            content.tell_if_new_within(kernel.attribute_lifetime() + STAMP_SLACK, || {
                // Of its pages it has none, but it may take the file to be as long as it was then.
                if !is_new {
                    kernel.attributes_changed(self.node());
                }
            });
        }
        if pages.change().is_none() {
            return if is_cached { KernelCaching::Keep } else { KernelCaching::Bypass };
        }
        // This also tells the kernel that it does not know the attributes. It is told once for each
        // change: see `when_refillable`.
        pages.drop_if_changed();
        if is_cached { KernelCaching::Refill } else { KernelCaching::Bypass }
    }

    /// Returns whether the kernel should cache the pages of the file. One that does not find room
    /// in the group would push out all else, itself included. What is written may be read soon.
    fn is_worth_caching(&self, pages: &KernelPages) -> bool {
        let (room, len) = (room_of(self.group()), self.content.file.len());
        if room < ROOM_BYTES_MIN || len > room {
            return false;
        }
        !pages.is_of_stream(self.group(), room, len) || self.is_writable()
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
            Arc::clone(&self.content.file),
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
