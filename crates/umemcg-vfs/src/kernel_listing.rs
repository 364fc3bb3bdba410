//! The listing of one directory that the kernel above the mount keeps.
//!
//! Where directories are listed without having been opened, the kernel copies the names that it is
//! given to pages of the directory's inode, one behind the other, and answers later listings from
//! there. The pages are charged to the group that listed them, and asked for like those of a file
//! ([`KernelPages`]).
//!
//! A position in a listing is the host's and says nothing about the place in those pages. The
//! places where the last parts ended are therefore noted. A listing that continues elsewhere counts
//! from the end of all that was ever listed: more is charged than the kernel has, never less.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

use crate::kernel_pages::KernelPages;
use crate::page_windows::page_range;

/// Bytes of a record in the kernel's pages beside its name; a record is rounded up to eight.
const RECORD_BYTES: u64 = 24;
/// Places that are noted: as many processes may list a large directory at once.
const NR_PLACES_MAX: usize = 8;

/// A position in a listing, and the bytes that the kernel keeps of the names before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    position: u64,
    bytes: u64,
}

/// A part of a listing, as it is put together for an answer.
#[derive(Debug)]
pub struct ListedPart {
    start_bytes: u64,
    end: Place,
}

impl ListedPart {
    /// Adds a name of `name_len` bytes; `next_position` is that behind it.
    pub fn push(&mut self, next_position: u64, name_len: usize) {
        let record = (RECORD_BYTES + name_len as u64).next_multiple_of(8);
        // No record crosses from one page to the next.
        let in_page = self.end.bytes % PAGE_SIZE_U64;
        if in_page + record > PAGE_SIZE_U64 {
            self.end.bytes += PAGE_SIZE_U64 - in_page;
        }
        self.end.bytes += record;
        self.end.position = next_position;
    }

    /// Returns the pages that its names are in.
    pub(crate) fn pages(&self) -> Range<u64> {
        page_range(self.start_bytes, self.end.bytes - self.start_bytes)
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct KernelListing {
    pub(crate) pages: Arc<KernelPages>,
    listed: LeafMutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    /// Where the last parts ended, newest first.
    places: VecDeque<Place>,
    /// The end of all parts.
    max_bytes: u64,
}

impl KernelListing {
    /// Creates the listing of a directory of which the kernel has no page.
    pub(crate) fn new(pages: Arc<KernelPages>) -> Self {
        Self { pages, listed: LeafMutex::default() }
    }

    /// Returns a part without names, at a position.
    pub(crate) fn part_at(&self, position: u64) -> ListedPart {
        let start_bytes = self.listed.lock().bytes_before(position);
        ListedPart { start_bytes, end: Place { position, bytes: start_bytes } }
    }

    /// Notes a part that the kernel is about to be given.
    pub(crate) fn note(&self, part: &ListedPart) {
        let mut listed = self.listed.lock();
        listed.places.retain(|place| place.position != part.end.position);
        listed.places.truncate(NR_PLACES_MAX - 1);
        listed.places.push_front(part.end);
        listed.max_bytes = listed.max_bytes.max(part.end.bytes);
    }
}

impl Listed {
    fn bytes_before(&self, position: u64) -> u64 {
        let noted = self.places.iter().find(|place| place.position == position);
        match position {
            0 => 0,
            _ => noted.map_or(self.max_bytes, |place| place.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start_bytes: u64) -> ListedPart {
        ListedPart { start_bytes, end: Place { position: 0, bytes: start_bytes } }
    }

    #[test]
    fn the_kernel_packs_a_record_into_one_page() {
        let mut part = part(0);
        // 128 records of 32 bytes fill a page.
        (1..=128).for_each(|position| part.push(position, 8));
        assert_eq!((part.pages(), part.end), (0..1, Place { position: 128, bytes: PAGE_SIZE_U64 }));
        part.push(129, 1);
        assert_eq!(part.pages(), 0..2);
        let mut long = self::part(PAGE_SIZE_U64 - 32);
        long.push(1, 200);
        assert_eq!(long.end.bytes, PAGE_SIZE_U64 + 224, "the end of the page before stays empty");
    }

    #[test]
    fn a_part_without_names_keeps_no_page() {
        assert!(part(0).pages().is_empty() && part(100).pages().is_empty());
    }
}
