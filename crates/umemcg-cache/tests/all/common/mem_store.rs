//! A backing store in memory that behaves like a disk with a volatile cache: what was written is
//! read back, but only what was synced survives a cut, and of the rest any subset does. It can also
//! fail, be short, and hang on request.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use umemcg_arena::{Arena, Segment};
use umemcg_base::PAGE_SIZE;
use umemcg_cache::{BackingStore, FILE_LEN_MAX, StoreId};

#[derive(Debug, Default)]
struct Contents {
    /// The bytes that a read sees.
    live: Vec<u8>,
    /// The bytes that survive a cut.
    durable: Vec<u8>,
    /// Pages written since they were last synced.
    unsynced: BTreeMap<usize, Vec<u8>>,
}

/// One file of such a store.
#[derive(Debug, Default)]
pub struct MemStore {
    contents: Mutex<Contents>,
    /// errno of all writes, 0 for none.
    pub fail_writes: AtomicU64,
    /// Bytes that no write may touch.
    pub bad: Mutex<std::ops::Range<u64>>,
    /// Bytes that no read may touch.
    pub bad_reads: Mutex<std::ops::Range<u64>>,
    pub fail_syncs: AtomicU64,
    pub fail_reads: AtomicU64,
    pub short_writes: AtomicBool,
    pub nr_reads: AtomicU64,
    pub nr_writes: AtomicU64,
    pub nr_syncs: AtomicU64,
    /// Largest single write in bytes.
    pub largest_write: AtomicU64,
    gate: (Mutex<bool>, Condvar),
    /// Calls that wait for the gate.
    pub nr_waiting: AtomicU64,
    id: u64,
    /// Runs at the start of every call: a cut can come at any of them.
    pub on_call: Hook,
}

/// A function to run at every call of a store.
#[derive(Default)]
pub struct Hook(Mutex<Option<Arc<dyn Fn() + Send + Sync>>>);

impl Hook {
    pub fn set(&self, hook: impl Fn() + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(hook));
    }
    pub fn clear(&self) {
        *self.0.lock() = None;
    }
    fn run(&self) {
        let hook = self.0.lock().clone();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl MemStore {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }
    pub fn on_store(id: u64) -> Arc<Self> {
        Arc::new(Self { id, ..Self::default() })
    }
    pub fn with(bytes: &[u8]) -> Arc<Self> {
        let store = Self::new();
        store.contents.lock().live = bytes.to_vec();
        store.contents.lock().durable = bytes.to_vec();
        store
    }
    pub fn live(&self) -> Vec<u8> {
        self.contents.lock().live.clone()
    }
    /// Returns the bytes after a cut, if `keep` says which unsynced pages happened to reach the
    /// disk.
    pub fn after_cut(&self, mut keep: impl FnMut(usize) -> bool) -> Vec<u8> {
        let contents = self.contents.lock();
        let mut bytes = contents.durable.clone();
        for (&page, data) in &contents.unsynced {
            if keep(page) {
                let at = page * PAGE_SIZE;
                if bytes.len() < at + data.len() {
                    bytes.resize(at + data.len(), 0);
                }
                bytes[at..at + data.len()].copy_from_slice(data);
            }
        }
        bytes
    }
    /// Makes a range zero, on the disk too.
    pub fn punch(&self, offset: u64, len: u64) {
        let mut contents = self.contents.lock();
        let Contents { live, durable, unsynced } = &mut *contents;
        let (from, to) = (offset as usize, (offset + len) as usize);
        for bytes in [&mut *live, durable] {
            let end = to.min(bytes.len());
            bytes[from.min(end)..end].fill(0);
        }
        for (&page, data) in unsynced.iter_mut() {
            let start = page * PAGE_SIZE;
            let end = to.clamp(start, start + data.len()) - start;
            let begin = from.clamp(start, start + data.len()) - start;
            data[begin..end.max(begin)].fill(0);
        }
    }
    pub fn hang(&self) {
        *self.gate.0.lock() = true;
    }
    pub fn release(&self) {
        *self.gate.0.lock() = false;
        self.gate.1.notify_all();
    }
    fn pass(&self) {
        self.on_call.run();
        let mut shut = self.gate.0.lock();
        self.nr_waiting.fetch_add(1, Ordering::Relaxed);
        while *shut {
            self.gate.1.wait(&mut shut);
        }
        self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
    }
    fn fail(plan: &AtomicU64) -> io::Result<()> {
        match plan.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

impl BackingStore for MemStore {
    fn store_id(&self) -> StoreId {
        StoreId(self.id)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.pass();
        Self::fail(&self.fail_reads)?;
        let (bad, len) =
            (self.bad_reads.lock().clone(), segments.iter().map(|s| u64::from(s.len)).sum::<u64>());
        if bad.start < offset + len && offset < bad.end {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.nr_reads.fetch_add(1, Ordering::Relaxed);
        let contents = self.contents.lock();
        let mut at = offset as usize;
        let mut read = 0;
        for segment in segments {
            let end = contents.live.len().min(at + usize::from(segment.len));
            if end <= at {
                break;
            }
            arena.copy_in(segment.frame, usize::from(segment.offset), &contents.live[at..end]);
            read += end - at;
            at = end;
        }
        Ok(read)
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.pass();
        Self::fail(&self.fail_writes)?;
        let (bad, len) = (self.bad.lock().clone(), segments.iter().map(|s| u64::from(s.len)).sum::<u64>());
        if bad.start < offset + len && offset < bad.end {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.nr_writes.fetch_add(1, Ordering::Relaxed);
        let mut contents = self.contents.lock();
        let mut at = offset as usize;
        let mut written = 0;
        for segment in segments {
            let mut bytes = vec![0; usize::from(segment.len)];
            arena.copy_out(segment.frame, usize::from(segment.offset), &mut bytes);
            if contents.live.len() < at + bytes.len() {
                contents.live.resize(at + bytes.len(), 0);
            }
            contents.live[at..at + bytes.len()].copy_from_slice(&bytes);
            for page in at / PAGE_SIZE..(at + bytes.len()).div_ceil(PAGE_SIZE) {
                let end = contents.live.len().min((page + 1) * PAGE_SIZE);
                let data = contents.live[page * PAGE_SIZE..end].to_vec();
                contents.unsynced.insert(page, data);
            }
            at += bytes.len();
            written += bytes.len();
            if self.short_writes.load(Ordering::Relaxed) && written >= 1000 {
                break;
            }
        }
        self.largest_write.fetch_max(written as u64, Ordering::Relaxed);
        Ok(written)
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        assert!(len > 0 && offset + len <= FILE_LEN_MAX, "{offset} + {len}");
        self.pass();
        Self::fail(&self.fail_syncs)?;
        self.nr_syncs.fetch_add(1, Ordering::Relaxed);
        let mut contents = self.contents.lock();
        let first = offset as usize / PAGE_SIZE;
        let end = (offset + len).div_ceil(PAGE_SIZE as u64) as usize;
        let pages: Vec<usize> = contents.unsynced.range(first..end).map(|(&page, _)| page).collect();
        for page in pages {
            let data = contents.unsynced.remove(&page).unwrap();
            let at = page * PAGE_SIZE;
            if contents.durable.len() < at + data.len() {
                contents.durable.resize(at + data.len(), 0);
            }
            contents.durable[at..at + data.len()].copy_from_slice(&data);
        }
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> io::Result<()> {
        self.sync_range(0, FILE_LEN_MAX)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut contents = self.contents.lock();
        contents.live.resize(len as usize, 0);
        let pages = (len as usize).div_ceil(PAGE_SIZE);
        contents.unsynced.retain(|&page, _| page < pages);
        contents.durable.resize(len as usize, 0);
        if let Some(data) = contents.unsynced.get_mut(&(len as usize / PAGE_SIZE)) {
            data.truncate(len as usize % PAGE_SIZE);
        }
        Ok(())
    }
}
