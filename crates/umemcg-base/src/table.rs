//! A growing table of chunks that never move. So an existing entry can be read through a plain
//! reference for as long as the table lives: no epochs, no reference counts, no lock. Entries are
//! reused, never freed. A reader finding an entry by index checks that it is still the wanted one.

use std::sync::OnceLock;

/// log2 of the entries in the first chunk. Small in models, because they pay for every atomic.
const FIRST_SHIFT: u32 = if cfg!(loom) { 2 } else { 6 };
/// Chunks double, so these cover every `u32` index.
const NR_CHUNKS: usize = 33 - FIRST_SHIFT as usize;
/// Chunks of this many bytes are worth huge pages.
const HUGE_BYTES: usize = 2 << 20;

/// Asks the operating system for huge pages below memory, as (address, bytes).
pub type HugePages = fn(usize, usize);

static HUGE_PAGES: OnceLock<HugePages> = OnceLock::new();

/// Sets the function that requests huge pages; only a higher layer can provide it. Without huge
/// pages, random reads of large tables are dominated by TLB misses. Existing chunks do not change;
/// only the first call has an effect.
pub fn use_huge_pages(ask: HugePages) {
    let _ = HUGE_PAGES.set(ask);
}

/// A growing table of `T`, indexed by `u32`.
#[derive(Debug)]
pub struct Table<T> {
    chunks: [OnceLock<Box<[T]>>; NR_CHUNKS],
}

impl<T> Table<T> {
    /// Creates an empty table; takes no memory for entries.
    pub const fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; NR_CHUNKS] }
    }

    /// Returns the chunk of an index and the place in it: with 64 entries in chunk 0, chunk n ≥ 1
    /// holds `64 << (n − 1)`.
    #[inline]
    fn locate(index: u32) -> (usize, usize) {
        let high = index >> FIRST_SHIFT;
        if high == 0 {
            return (0, index as usize);
        }
        let level = 32 - high.leading_zeros();
        let base = 1u32 << (FIRST_SHIFT + level - 1);
        (level as usize, (index - base) as usize)
    }

    fn chunk_len(chunk: usize) -> usize {
        if chunk == 0 { 1 << FIRST_SHIFT } else { 1usize << (FIRST_SHIFT as usize + chunk - 1) }
    }

    /// Returns the entry, if its chunk exists.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (chunk, place) = Self::locate(index);
        self.chunks[chunk].get().map(|entries| &entries[place])
    }

    /// Returns the entry. On the first access to its chunk, allocates the chunk and fills it by
    /// `make`.
    pub fn get_or_grow(&self, index: u32, make: impl Fn() -> T) -> &T {
        let (chunk, place) = Self::locate(index);
        &self.chunks[chunk].get_or_init(|| Self::chunk(Self::chunk_len(chunk), make))[place]
    }

    #[cold]
    fn chunk(len: usize, make: impl Fn() -> T) -> Box<[T]> {
        let mut entries: Vec<T> = Vec::with_capacity(len);
        let bytes = len * size_of::<T>();
        if bytes >= HUGE_BYTES
            && let Some(ask) = HUGE_PAGES.get()
        {
            // Before the first write, which allocates the pages.
            ask(entries.as_ptr().addr(), bytes);
        }
        entries.extend((0..len).map(|_| make()));
        entries.into_boxed_slice()
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PAGE: usize = 4096;

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let mut seen = HashSet::new();
        for index in 0..10_000u32 {
            let (chunk, place) = Table::<u8>::locate(index);
            assert!(place < Table::<u8>::chunk_len(chunk), "{index}");
            assert!(seen.insert((chunk, place)), "{index}");
        }
        let (chunk, place) = Table::<u8>::locate(u32::MAX);
        assert!(chunk < NR_CHUNKS && place < Table::<u8>::chunk_len(chunk));
    }

    #[test]
    fn large_chunks_ask_for_huge_pages_before_they_are_filled() {
        static ASKED: std::sync::Mutex<Vec<(usize, usize)>> = std::sync::Mutex::new(Vec::new());
        use_huge_pages(|address, bytes| ASKED.lock().unwrap().push((address, bytes)));
        let table = Table::new();
        table.get_or_grow(0, || [1u8; PAGE]);
        assert!(ASKED.lock().unwrap().is_empty());
        let entry = table.get_or_grow((HUGE_BYTES / PAGE) as u32, || [2u8; PAGE]);
        assert_eq!(entry, &[2; PAGE]);
        let asked = ASKED.lock().unwrap();
        assert!(matches!(asked[..], [(at, HUGE_BYTES)] if at == entry.as_ptr().addr()), "{asked:?}");
    }

    #[test]
    fn what_was_never_grown_reads_as_missing() {
        let table = Table::new();
        assert!(table.get(100).is_none());
        *table.get_or_grow(100, || std::sync::Mutex::new(0)).lock().unwrap() = 7;
        assert_eq!(*table.get(100).unwrap().lock().unwrap(), 7);
        assert!(table.get(5).is_none());
    }
}
