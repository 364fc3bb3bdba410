//! The listing of one directory in the cache of the kernel above the mount.
//!
//! Where directories are listed without an open, the kernel copies the returned names to pages of
//! the directory's inode, one behind the other, and answers later listings from there. The pages
//! are charged to the group of the process listing them, and reclaimed like the pages of a file
//! ([`KernelPages`]).
//!
//! A position in a listing is the host's and unrelated to the place in those pages, so the ends of
//! the last parts are recorded. A listing continued elsewhere counts from the end of everything
//! listed so far: the charge may exceed the kernel's pages, but never falls short of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

use crate::kernel_pages::KernelPages;
use crate::page_windows::page_range;

/// The bytes of a record in the kernel's pages beside its name; a record is rounded up to eight.
const RECORD_BYTES: u64 = 24;
/// The number of recorded places: as many processes may list a large directory at once.
const NR_PLACES_MAX: usize = 8;

/// A position in a listing, and the bytes of the names before it in the kernel's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    position: u64,
    bytes: u64,
}

/// A part of a listing under construction for an answer.
#[derive(Debug)]
pub struct ListedPart {
    start_bytes: u64,
    end: Place,
}

impl ListedPart {
    /// Adds a name of `name_len` bytes; `next_position` is the position behind it.
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

    /// Returns the pages of its names.
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
    /// The ends of the last parts, newest first.
    places: VecDeque<Place>,
    /// The end of all parts.
    max_bytes: u64,
}

impl KernelListing {
    /// Creates the listing of a directory without pages in the kernel.
    pub(crate) fn new(pages: Arc<KernelPages>) -> Self {
        Self { pages, listed: LeafMutex::default() }
    }

    /// Returns a part without names, at a position.
    pub(crate) fn part_at(&self, position: u64) -> ListedPart {
        let start_bytes = self.listed.lock().bytes_before(position);
        ListedPart { start_bytes, end: Place { position, bytes: start_bytes } }
    }

    /// Notes a part about to be returned to the kernel.
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
