//! The store of a round: a disk that forgets what was not synced, behind a seam that fails, is
//! full, stalls and writes less than asked, and that lets other threads go on at every call.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use umemcg::files::{Arena, BackingStore, Segment, StoreId, StoreRead};
use umemcg_base::schedule;
use umemcg_base::{Condvar, LeafMutex};

use crate::disk::{Disk, Random};

/// The effect of the store on calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Writes end with EIO.
    Writes,
    /// Syncs end with EIO.
    Syncs,
    /// Reads end with EIO.
    Reads,
    /// Nothing becomes longer.
    Full,
    /// Each call takes seconds.
    Stall,
    /// Writes take a part.
    Short,
}

pub const FAULTS: [Fault; 6] =
    [Fault::Writes, Fault::Syncs, Fault::Reads, Fault::Full, Fault::Stall, Fault::Short];

/// A disk with its faults.
#[derive(Debug)]
pub struct Store {
    pub disk: Arc<Disk>,
    fault: LeafMutex<Fault>,
    /// Calls that ended with an error.
    pub nr_refused: AtomicU64,
    pub nr_calls: AtomicUsize,
    random: LeafMutex<Random>,
    /// Reads that have been begun, with their files.
    begun: LeafMutex<VecDeque<(usize, StoreRead)>>,
    begins: Condvar,
}

impl Store {
    pub fn new(nr_files: usize, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            disk: Disk::new(nr_files),
            fault: LeafMutex::new(Fault::None),
            nr_refused: AtomicU64::new(0),
            nr_calls: AtomicUsize::new(0),
            random: LeafMutex::new(Random(seed)),
            begun: LeafMutex::default(),
            begins: Condvar::default(),
        })
    }

    /// Ends a read that has been begun, when there is one: any of them. Returns `false` if there
    /// has been none for a while.
    pub fn end_a_read(&self) -> bool {
        let (file, read) = {
            let mut begun = self.begun.lock();
            if begun.is_empty() {
                self.begins.wait_for(&mut begun, Duration::from_millis(10));
            }
            let nr = begun.len();
            let at = if nr == 0 { return false } else { self.nr_calls.load(Relaxed) % nr };
            match begun.remove(at) {
                Some(begun) => begun,
                None => return false,
            }
        };
        self.answer(file, read);
        true
    }

    fn answer(&self, file: usize, mut read: StoreRead) {
        let how = self.call(&[Fault::Reads]);
        let bytes = self.disk.read(file, read.offset() as usize, read.len());
        let mut left = &bytes[..];
        let is_cut = how.is_err();
        while !left.is_empty() && !(is_cut && left.len() <= bytes.len() / 2) {
            // What was read arrives later.
            schedule::pause();
            let nr = 1 + self.random.lock().below(left.len());
            let (here, rest) = left.split_at(nr);
            read.deliver(here);
            left = rest;
        }
        match how {
            // Dropped, it has failed too.
            Err(_) if self.random.lock().below(3) == 0 => drop(read),
            how => read.finish(how.map(drop)),
        }
    }

    pub fn set_fault(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }

    fn call(&self, refuses: &[Fault]) -> io::Result<Fault> {
        schedule::pause();
        self.nr_calls.fetch_add(1, Relaxed);
        let fault = *self.fault.lock();
        if fault == Fault::Stall {
            let ms = self.random.lock().below(3_000);
            schedule::sleep(Duration::from_millis(ms as u64));
        } else if self.random.lock().below(4) == 0 {
            let us = self.random.lock().below(2_000);
            schedule::sleep(Duration::from_micros(us as u64));
        }
        if refuses.contains(&fault) {
            self.nr_refused.fetch_add(1, Relaxed);
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(fault)
    }

    fn full(&self) -> io::Error {
        self.nr_refused.fetch_add(1, Relaxed);
        io::Error::from_raw_os_error(28)
    }

    /// Makes a range zero, as a hole punch in the store does.
    pub fn punch(&self, file: usize, offset: usize, len: usize) -> io::Result<()> {
        self.call(&[Fault::Writes])?;
        self.disk.zero(file, offset..offset + len);
        Ok(())
    }

    pub fn set_len(&self, file: usize, len: usize) -> io::Result<()> {
        let fault = self.call(&[Fault::Writes])?;
        if fault == Fault::Full && len > self.disk.len(file) {
            return Err(self.full());
        }
        self.disk.set_len(file, len);
        Ok(())
    }
}

/// One file of it.
#[derive(Debug)]
pub struct StoreFile {
    pub store: Arc<Store>,
    pub file: usize,
    /// Reads of it can be begun.
    pub begins_reads: bool,
}

impl BackingStore for StoreFile {
    fn store_id(&self) -> StoreId {
        StoreId(1 + self.file as u64 % 2)
    }

    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.store.call(&[Fault::Reads])?;
        let wanted = segments.iter().map(|segment| usize::from(segment.len)).sum();
        let bytes = self.store.disk.read(self.file, offset as usize, wanted);
        // What was read arrives later.
        schedule::pause();
        let mut rest = &bytes[..];
        for segment in segments {
            let (here, more) = rest.split_at(rest.len().min(usize::from(segment.len)));
            arena.copy_in(segment.frame, usize::from(segment.offset), here);
            rest = more;
        }
        Ok(bytes.len())
    }

    fn begins_reads(&self) -> bool {
        self.begins_reads
    }

    fn begin_read(&self, read: StoreRead) {
        schedule::pause();
        if self.store.random.lock().below(8) == 0 {
            return self.store.answer(self.file, read);
        }
        self.store.begun.lock().push_back((self.file, read));
        self.store.begins.notify_one();
    }

    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let fault = self.store.call(&[Fault::Writes])?;
        let mut bytes = Vec::new();
        for segment in segments {
            let start = bytes.len();
            bytes.resize(start + usize::from(segment.len), 0);
            arena.copy_out(segment.frame, usize::from(segment.offset), &mut bytes[start..]);
        }
        // What was taken is written later.
        schedule::pause();
        if fault == Fault::Short {
            bytes.truncate((bytes.len() / 2).max(1));
        }
        if fault == Fault::Full {
            let room = self.store.disk.len(self.file).saturating_sub(offset as usize);
            if room == 0 {
                return Err(self.store.full());
            }
            bytes.truncate(room);
        }
        self.store.disk.write(self.file, offset as usize, &bytes);
        Ok(bytes.len())
    }

    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        // Enough to evict, never enough for a user.
        self.store.call(&[Fault::Syncs]).map(drop)
    }

    fn sync(&self, _data_only: bool) -> io::Result<()> {
        self.store.call(&[Fault::Syncs])?;
        self.store.disk.sync(self.file);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.store.set_len(self.file, len as usize)
    }
}
