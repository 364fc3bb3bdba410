//! Directory listings: records of eight-byte granularity, packed until the kernel's buffer is full.

#![allow(missing_debug_implementations, reason = "the derives make helper types of their own")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::reply::EntryOut;

/// One record; the name follows it.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Dirent {
    ino: u64,
    off: u64,
    namelen: u32,
    kind: u32,
}

/// Bytes of a record beside its name, in a plain listing and in one with attributes.
const PLAIN_BYTES: usize = size_of::<Dirent>();
const PLUS_BYTES: usize = size_of::<EntryOut>() + PLAIN_BYTES;

/// A listing under construction.
#[derive(Debug)]
pub struct DirBuffer {
    bytes: Vec<u8>,
    capacity: usize,
}

impl DirBuffer {
    /// Creates a listing of at most `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), capacity }
    }

    /// Returns whether a record with a name of this many bytes still fits.
    pub fn has_room(&self, name_len: usize, with_attributes: bool) -> bool {
        let fixed = if with_attributes { PLUS_BYTES } else { PLAIN_BYTES };
        self.bytes.len() + (fixed + name_len).next_multiple_of(8) <= self.capacity
    }

    /// Appends a name. `next` is the cookie of the entry after it; `kind` is the file type as in
    /// the top four bits of a mode. Returns `false`, and appends nothing, if it does not fit.
    #[must_use]
    pub fn push(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.has_room(name.len(), false) && self.append(None, ino, next, kind, name)
    }

    /// Appends a name with its attributes. The kernel counts a lookup for every entry with a
    /// `nodeid` other than 0.
    #[must_use]
    pub fn push_plus(&mut self, entry: &EntryOut, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.has_room(name.len(), true) && self.append(Some(entry), ino, next, kind, name)
    }

    fn append(&mut self, entry: Option<&EntryOut>, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = Dirent { ino, off: next, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        true
    }

    /// Returns whether nothing has been appended.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the listing.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_padded_and_never_pass_the_capacity() {
        let mut list = DirBuffer::new(64);
        assert!(list.push(1, 1, 8, b"a"));
        assert_eq!(list.as_bytes().len(), 32);
        assert!(list.push(2, 2, 8, b"12345678"));
        assert_eq!(list.as_bytes().len(), 64);
        assert!(!list.push(3, 3, 8, b"x"));
        assert_eq!(list.as_bytes().len(), 64);
    }

    #[test]
    fn a_record_with_attributes_takes_152_bytes_and_its_name() {
        let mut list = DirBuffer::new(160);
        assert!(list.push_plus(&EntryOut::default(), 1, 1, 8, b"12345678"));
        assert_eq!(list.as_bytes().len(), 160);
    }
}
