//! A disk that forgets, and what must be on it all the same.
//!
//! [`Disk`] holds files. A read sees every change; a cut of the power leaves of the changes that no
//! sync has confirmed any subset in any order: pages written, lengths set, holes punched, each by
//! itself. Nothing but a sync of the file confirms.
//!
//! [`Promises`] knows, byte for byte, what may be there after a cut: what was there when the file
//! was last synced with success, or anything that was written since. It is asked at the start and
//! at the end of every call to the disk, from any thread, with every kind of forgetfulness. As a
//! file's promise holds from the return of its sync on, what was written to another file afterwards
//! can never be there without it.
#![allow(dead_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The unit that is written and forgotten as one.
const PAGE: usize = 4096;
/// The unit that has one promise. Every write writes whole ones.
pub const CELL: usize = 512;

#[derive(Debug, Clone)]
enum Change {
    Page(usize, Vec<u8>),
    Len(usize),
    Zero(Range<usize>),
}

fn apply(bytes: &mut Vec<u8>, len: &mut usize, change: &Change) {
    let reach = |bytes: &mut Vec<u8>, end: usize| bytes.resize(bytes.len().max(end), 0);
    match change {
        Change::Page(page, data) => {
            reach(bytes, (page + 1) * PAGE);
            bytes[page * PAGE..(page + 1) * PAGE].copy_from_slice(data);
        }
        Change::Len(new) => {
            // What is cut off is zero when it comes back.
            let end = bytes.len();
            bytes[(*new).min(end)..].fill(0);
            *len = *new;
        }
        Change::Zero(range) => {
            reach(bytes, range.end);
            bytes[range.clone()].fill(0);
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Durable {
    /// Pages as far as any was written; those beyond the length are lost with it.
    bytes: Vec<u8>,
    len: usize,
}

#[derive(Debug, Default)]
struct State {
    live: Vec<Vec<u8>>,
    durable: Vec<Durable>,
    /// Of all files, oldest first.
    unsynced: Vec<(usize, Change)>,
}

type Hook = dyn Fn(&Disk) + Send + Sync;

/// See the module text.
#[derive(Default)]
pub struct Disk {
    state: Mutex<State>,
    on_call: Mutex<Option<Arc<Hook>>>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

/// A failed assertion elsewhere must not hide itself behind this one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// A disk with this many empty files, which are durable.
    pub fn new(nr_files: usize) -> Arc<Self> {
        let disk = Self::default();
        lock(&disk.state).live = vec![Vec::new(); nr_files];
        lock(&disk.state).durable = vec![Durable::default(); nr_files];
        Arc::new(disk)
    }

    /// Runs `check` at the start and at the end of every call from now on.
    pub fn on_call(&self, check: impl Fn(&Self) + Send + Sync + 'static) {
        *lock(&self.on_call) = Some(Arc::new(check));
    }

    fn call<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let check = lock(&self.on_call).clone();
        check.iter().for_each(|check| check(self));
        let result = call(&mut lock(&self.state));
        check.iter().for_each(|check| check(self));
        result
    }

    pub fn len(&self, file: usize) -> usize {
        lock(&self.state).live[file].len()
    }

    /// Returns the bytes that a reader sees; fewer at the end of the file.
    pub fn read(&self, file: usize, offset: usize, len: usize) -> Vec<u8> {
        self.call(|state| {
            let live = &state.live[file];
            live[offset.min(live.len())..(offset + len).min(live.len())].to_vec()
        })
    }

    pub fn write(&self, file: usize, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.call(|state| {
            let live = &mut state.live[file];
            if end > live.len() {
                live.resize(end, 0);
                state.unsynced.push((file, Change::Len(end)));
            }
            live[offset..end].copy_from_slice(bytes);
            for page in offset / PAGE..end.div_ceil(PAGE) {
                let mut data = live[page * PAGE..live.len().min((page + 1) * PAGE)].to_vec();
                data.resize(PAGE, 0);
                state.unsynced.push((file, Change::Page(page, data)));
            }
        });
    }

    pub fn set_len(&self, file: usize, len: usize) {
        self.call(|state| {
            state.live[file].resize(len, 0);
            state.unsynced.push((file, Change::Len(len)));
        });
    }

    /// Makes a range zero, as far as the file reaches.
    pub fn zero(&self, file: usize, range: Range<usize>) {
        self.call(|state| {
            let live = &mut state.live[file];
            let range = range.start.min(live.len())..range.end.min(live.len());
            live[range.clone()].fill(0);
            state.unsynced.push((file, Change::Zero(range)));
        });
    }

    /// Makes a file durable.
    pub fn sync(&self, file: usize) {
        self.call(|state| {
            let (mine, others) = state.unsynced.drain(..).partition(|(of, _)| *of == file);
            state.unsynced = others;
            let durable = &mut state.durable[file];
            let mine: Vec<(usize, Change)> = mine;
            mine.iter().for_each(|(_, change)| apply(&mut durable.bytes, &mut durable.len, change));
        });
    }

    /// A call that confirms nothing.
    pub fn pass(&self) {
        self.call(|_| ());
    }

    /// The files after a cut. `fate` gets the number of changes that are not confirmed and says
    /// which survive, and in which order they reach the disk.
    pub fn after_cut(&self, fate: impl FnOnce(usize) -> Vec<usize>) -> Vec<Vec<u8>> {
        let state = lock(&self.state);
        let mut files = state.durable.clone();
        for at in fate(state.unsynced.len()) {
            let (file, change) = &state.unsynced[at];
            let Durable { bytes, len } = &mut files[*file];
            apply(bytes, len, change);
        }
        files
            .into_iter()
            .map(|mut file| {
                file.bytes.resize(file.len, 0);
                file.bytes
            })
            .collect()
    }
}

/// A small generator, so that a failure can be repeated from its seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// A seed for another one.
    pub fn next(&mut self) -> u64 {
        (self.below(1 << 32) as u64) << 32 | self.below(1 << 32) as u64
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (((mixed ^ (mixed >> 27)) >> 32) as usize * bound) >> 32
    }
}

/// The seeds of a run: a few known ones, or this many new ones as `UMEMCG_CRASH_ROUNDS` says, from
/// `UMEMCG_CRASH_SEED` on or any.
pub fn seeds(nr: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let Some(nr) = number("UMEMCG_CRASH_ROUNDS") else { return 0..nr };
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let first = number("UMEMCG_CRASH_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    eprintln!("{nr} rounds, UMEMCG_CRASH_SEED={first}");
    first..first + nr
}

/// Kinds of forgetfulness that are tried at every cut, the last few of them at random.
const NR_FATES: usize = 7;

fn fate(kind: usize, nr: usize, random: &mut Random) -> Vec<usize> {
    match kind {
        0 => Vec::new(),
        1 => (0..nr).collect(),
        2 => (0..nr).rev().collect(),
        // The newest reached the disk, nothing older did.
        3 => (nr.saturating_sub(1)..nr).collect(),
        _ => {
            let mut survivors: Vec<usize> = (0..nr).filter(|_| random.below(2) == 0).collect();
            for at in (1..survivors.len()).rev() {
                survivors.swap(at, random.below(at + 1));
            }
            survivors
        }
    }
}

/// The possible contents of one file after a cut.
#[derive(Debug, Clone)]
struct Promise {
    /// The value last written to each cell, and the others that may be there.
    cells: Vec<(u8, Vec<u8>)>,
    /// The length, and what else it may be.
    len: usize,
    lens: Range<usize>,
}

/// See the module text.
#[derive(Debug)]
pub struct Promises {
    files: Vec<Promise>,
    random: Random,
    /// Cuts that were looked at.
    pub nr_cuts: usize,
    /// The first promise that was broken.
    pub broken: Option<String>,
}

impl Promises {
    /// For empty files of at most `len_max` bytes.
    pub fn new(nr_files: usize, len_max: usize, seed: u64) -> Arc<Mutex<Self>> {
        let promise = Promise { cells: vec![(0, vec![0]); len_max / CELL], len: 0, lens: 0..1 };
        let files = vec![promise; nr_files];
        Arc::new(Mutex::new(Self { files, random: Random(seed), nr_cuts: 0, broken: None }))
    }

    pub fn len(&self, file: usize) -> usize {
        self.files[file].len
    }

    fn may_be(promise: &mut Promise, cells: Range<usize>, value: u8) {
        for (now, others) in &mut promise.cells[cells] {
            *now = value;
            if !others.contains(&value) {
                others.push(value);
            }
        }
    }

    fn may_be_long(promise: &mut Promise, len: usize) {
        promise.len = len;
        promise.lens = promise.lens.start.min(len)..promise.lens.end.max(len + 1);
    }

    /// A range is about to be filled with `value`.
    pub fn will_write(&mut self, file: usize, range: Range<usize>, value: u8) {
        let promise = &mut self.files[file];
        Self::may_be(promise, range.start / CELL..range.end / CELL, value);
        let len = promise.len.max(range.end);
        Self::may_be_long(promise, len);
    }

    /// A range is about to become zero without a change of the length.
    pub fn will_zero(&mut self, file: usize, range: Range<usize>) {
        Self::may_be(&mut self.files[file], range.start / CELL..range.end / CELL, 0);
    }

    pub fn will_set_len(&mut self, file: usize, len: usize) {
        let promise = &mut self.files[file];
        let end = promise.cells.len();
        Self::may_be(promise, len / CELL..end, 0);
        Self::may_be_long(promise, len);
    }

    /// A sync that was begun after all of that has said that it is durable.
    pub fn is_synced(&mut self, file: usize) {
        let promise = &mut self.files[file];
        promise.cells.iter_mut().for_each(|(now, others)| *others = vec![*now]);
        promise.lens = promise.len..promise.len + 1;
    }

    /// Returns the bytes that a reader must see.
    pub fn expected(&self, file: usize) -> Vec<u8> {
        let promise = &self.files[file];
        promise.cells[..promise.len / CELL].iter().flat_map(|&(now, _)| [now; CELL]).collect()
    }

    /// Looks at what a cut would leave right now.
    pub fn check(&mut self, disk: &Disk) {
        self.nr_cuts += 1;
        for kind in 0..NR_FATES {
            let random = &mut self.random;
            let files = disk.after_cut(|nr| fate(kind, nr, random));
            for (nr, (promise, bytes)) in self.files.iter().zip(&files).enumerate() {
                let broken = Self::broken(promise, bytes);
                if self.broken.is_none() && broken.is_some() {
                    let broken = broken.unwrap_or_default();
                    self.broken = Some(format!("file {nr}, cut {}, fate {kind}: {broken}", self.nr_cuts));
                }
            }
        }
    }

    fn broken(promise: &Promise, bytes: &[u8]) -> Option<String> {
        if !promise.lens.contains(&bytes.len()) {
            return Some(format!("{} bytes, promised {:?}", bytes.len(), promise.lens));
        }
        for (cell, (_, values)) in promise.cells.iter().enumerate() {
            let there = bytes.get(cell * CELL..(cell + 1) * CELL).unwrap_or(&[0; CELL]);
            // Nearly all are of one value, and all of them are looked at after each cut.
            if there == [there[0]; CELL] && values.contains(&there[0]) {
                continue;
            }
            if let Some(wrong) = there.iter().find(|byte| !values.contains(byte)) {
                return Some(format!("{wrong} in cell {cell}, promised one of {values:?}"));
            }
        }
        None
    }
}
