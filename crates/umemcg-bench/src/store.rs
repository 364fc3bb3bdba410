//! Backing stores over one open file of the host and over nothing, and checkable contents.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use umemcg::Engine;
use umemcg::files::{Arena, BackingStore, IoFlags, PinnedPages, Segment, StoreId};
use umemcg_base::PAGE_SIZE;

/// A file of the host as a backing store, buffered by the kernel.
#[derive(Debug)]
pub struct HostFile(pub File);

impl BackingStore for HostFile {
    fn store_id(&self) -> StoreId {
        StoreId(1)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        umemcg_arena::io::read_at(arena, segments, self.0.as_fd(), offset, IoFlags::NONE)
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        umemcg_arena::io::write_at(arena, segments, self.0.as_fd(), offset, IoFlags::NONE)
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.0.sync_data()
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        if data_only { self.0.sync_data() } else { self.0.sync_all() }
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

/// A store with made-up checkable contents that keeps no write: memory speed, with no system call.
#[derive(Debug)]
pub struct Generated;

impl BackingStore for Generated {
    fn store_id(&self) -> StoreId {
        StoreId(2)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let mut bytes = [0; PAGE_SIZE];
        let mut nr_read = 0;
        for segment in segments {
            let part = &mut bytes[..usize::from(segment.len)];
            fill(offset + nr_read as u64, part);
            arena.copy_in(segment.frame, usize::from(segment.offset), part);
            nr_read += part.len();
        }
        Ok(nr_read)
    }
    fn write_at(&self, _: &Arena, segments: &[Segment], _: u64) -> io::Result<usize> {
        Ok(segments.iter().map(|segment| usize::from(segment.len)).sum())
    }
    fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the word at a place in a file of checkable contents: any mixture of pages is detected.
#[inline]
pub fn word_at(offset: u64) -> u64 {
    let mixed = (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Returns the first word of pages just read; there is one at least.
pub fn first_word(engine: &Engine, pages: &PinnedPages<'_>) -> u64 {
    let segment = pages.segments()[0];
    engine.arena().load_u64(segment.frame, usize::from(segment.offset))
}

/// Fills a piece of such a file that starts at `offset`; both are multiples of eight.
pub fn fill(offset: u64, bytes: &mut [u8]) {
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(offset + 8 * at as u64).to_le_bytes());
    }
}

/// Returns whether a piece of such a file is right.
pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).enumerate().all(|(at, word)| word == word_at(offset + 8 * at as u64).to_le_bytes())
}

/// Makes an unnamed file of checkable contents.
///
/// # Errors
/// The error of the file system.
pub fn make_file(directory: &Path, len: u64) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(directory)?;
    write_contents(&mut file, len)?;
    Ok(file)
}

/// Writes checkable contents.
///
/// # Errors
/// The error of the file system.
pub fn write_contents(file: &mut File, len: u64) -> io::Result<()> {
    const PIECE: usize = 1 << 20;
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    while offset < len {
        let bytes = PIECE.min((len - offset) as usize);
        fill(offset, &mut piece[..bytes]);
        file.write_all(&piece[..bytes])?;
        offset += bytes as u64;
    }
    Ok(())
}
