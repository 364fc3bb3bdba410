//! Whether the pages of a file are worth keeping in the kernel.

use umemcg::Group;

use super::KernelPages;

/// The least room of a group for which the kernel caches files: it reads ahead, and a request of
/// the largest size must find room beside others.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Returns the most bytes a group may have.
fn room_of(group: &Group) -> u64 {
    group.ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX)
}

impl KernelPages {
    /// Returns whether the kernel should cache the pages of the file, of `len` bytes, for a group
    /// opening it. A file larger than the group's room would push out everything else, itself
    /// included. Data written may be read soon.
    pub(crate) fn are_worth_caching(&self, group: &Group, len: u64, is_writable: bool) -> bool {
        let room = room_of(group);
        if room < ROOM_BYTES_MIN || len > room {
            return false;
        }
        !self.is_of_stream(group, room, len) || is_writable
    }
}
