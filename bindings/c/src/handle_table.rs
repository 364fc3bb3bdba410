//! A table of objects by handle. C holds only handles.
//!
//! ```text
//!   63           32 31       24 23            0
//!   generation      kind        place + 1          0 is no handle
//! ```
//!
//! A place gets a new generation when its object is removed, so a handle of a freed object finds
//! nothing, even if the place has a new object. A place without generations left is never reused.
//! Reading takes no lock: segments of places never move, and the object of a place is swapped
//! atomically. Adding and removing take one lock for a few instructions.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::{ArcSwapOption, Guard};

/// Places in the first segment; each further one has twice as many.
const FIRST_SEGMENT: u32 = 64;
/// Enough segments for all place numbers.
const NR_SEGMENTS: usize = 18;
const PLACE_BITS: u32 = 24;
const KIND_BITS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Entry<T> {
    /// (C)
    pub(crate) handle: u64,
    pub(crate) object: T,
}

#[derive(Debug)]
struct Place<T> {
    entry: ArcSwapOption<Entry<T>>,
    /// The generation of the next object. Changed only by the thread owning the place: it has taken
    /// the place from the free ones, or has taken the object out.
    generation: AtomicU32,
}

/// The free places, and the first never used one.
#[derive(Debug, Default)]
struct Free {
    places: Vec<u32>,
    unused: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct HandleTable<T> {
    segments: [OnceLock<Box<[Place<T>]>>; NR_SEGMENTS],
    free: Mutex<Free>,
}

/// There is no room for another handle.
#[derive(Debug)]
pub(crate) struct TooManyHandles;

/// Returns the kind encoded in a handle.
pub(crate) fn kind_of(handle: u64) -> u8 {
    (handle >> PLACE_BITS) as u8
}

impl<T> HandleTable<T> {
    pub(crate) const fn new() -> Self {
        Self {
            segments: [const { OnceLock::new() }; NR_SEGMENTS],
            free: Mutex::new(Free { places: Vec::new(), unused: 0 }),
        }
    }

    fn lock_free(&self) -> MutexGuard<'_, Free> {
        // Nothing under this lock can panic half-way.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the segment of a place, and the place's index in it.
    fn find(place: u32) -> (usize, usize) {
        let segment = (place / FIRST_SEGMENT + 1).ilog2();
        let first = FIRST_SEGMENT * ((1 << segment) - 1);
        (segment as usize, (place - first) as usize)
    }

    fn place(&self, number: u32) -> Option<&Place<T>> {
        let (segment, index) = Self::find(number);
        self.segments.get(segment)?.get()?.get(index)
    }

    fn place_of(&self, handle: u64) -> Option<(u32, &Place<T>)> {
        let number = (handle as u32 & ((1 << PLACE_BITS) - 1)).checked_sub(1)?;
        Some((number, self.place(number)?))
    }

    /// Adds an object, unless `may_add` returns `false`. `may_add` runs last and under the lock. If
    /// a [`remove_all`](Self::remove_all) misses the object, `may_add` sees the stores before that
    /// call.
    pub(crate) fn insert(
        &self,
        kind: u8,
        object: T,
        may_add: impl FnOnce() -> bool,
    ) -> Result<Option<u64>, TooManyHandles> {
        let mut free = self.lock_free();
        let number = match free.places.pop() {
            Some(number) => number,
            None if free.unused + 1 < 1 << PLACE_BITS => {
                free.unused += 1;
                free.unused - 1
            }
            None => return Err(TooManyHandles),
        };
        let (segment, index) = Self::find(number);
        let places = self.segments.get(segment).ok_or(TooManyHandles)?.get_or_init(|| {
            let place = |_| Place { entry: ArcSwapOption::empty(), generation: AtomicU32::new(0) };
            (0..FIRST_SEGMENT << segment).map(place).collect()
        });
        let place = &places[index];
        if !may_add() {
            free.places.push(number);
            return Ok(None);
        }
        let generation = u64::from(place.generation.load(Relaxed));
        let handle =
            generation << (PLACE_BITS + KIND_BITS) | u64::from(kind) << PLACE_BITS | u64::from(number + 1);
        place.entry.store(Some(Arc::new(Entry { handle, object })));
        Ok(Some(handle))
    }

    /// Returns the object of a handle. It lives at least as long as the result.
    pub(crate) fn get(&self, handle: u64) -> Option<Guard<Option<Arc<Entry<T>>>>> {
        let (_, place) = self.place_of(handle)?;
        let entry = place.entry.load();
        entry.as_ref().is_some_and(|entry| entry.handle == handle).then_some(entry)
    }

    /// Takes an object out. Of several concurrent calls with one handle, exactly one gets it.
    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<Entry<T>>> {
        let (number, place) = self.place_of(handle)?;
        let entry = place.entry.load_full().filter(|entry| entry.handle == handle)?;
        let before = place.entry.compare_and_swap(&entry, None);
        let is_ours = before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &entry));
        drop(before);
        if !is_ours {
            return None;
        }
        let generation = place.generation.load(Relaxed);
        if generation < u32::MAX {
            place.generation.store(generation + 1, Relaxed);
            self.lock_free().places.push(number);
        }
        Some(entry)
    }

    /// Takes out all objects selected by `is_meant`.
    pub(crate) fn remove_all(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<Entry<T>>> {
        let unused = self.lock_free().unused;
        let chosen = |number| {
            let entry = self.place(number)?.entry.load();
            entry.as_ref().filter(|entry| is_meant(&entry.object)).map(|entry| entry.handle)
        };
        (0..unused).filter_map(chosen).filter_map(|handle| self.remove(handle)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> HandleTable<u32> {
        HandleTable::new()
    }

    fn add(table: &HandleTable<u32>, object: u32) -> u64 {
        table.insert(7, object, || true).unwrap().unwrap()
    }

    fn read(table: &HandleTable<u32>, handle: u64) -> Option<u32> {
        table.get(handle)?.as_ref().map(|entry| entry.object)
    }

    #[test]
    fn a_handle_of_a_freed_object_finds_nothing() {
        let table = table();
        let first = add(&table, 1);
        assert_eq!((kind_of(first), read(&table, first)), (7, Some(1)));
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        let second = add(&table, 2);
        assert_eq!(first as u32, second as u32, "the place is used again");
        assert_eq!((read(&table, first), read(&table, second)), (None, Some(2)));
    }

    #[test]
    fn numbers_that_were_never_handles_find_nothing() {
        let table = table();
        let real = add(&table, 1);
        for bit in 0..64 {
            assert_eq!(read(&table, real ^ 1 << bit), None, "bit {bit}");
        }
        assert_eq!((read(&table, 0), read(&table, u64::MAX)), (None, None));
    }

    #[test]
    fn a_place_without_generations_is_not_used_again() {
        let table = table();
        let first = add(&table, 1);
        table.place(0).unwrap().generation.store(u32::MAX, Relaxed);
        table.remove(first);
        assert_ne!(add(&table, 2) as u32, first as u32);
    }

    #[test]
    fn many_places_have_different_handles() {
        let table = table();
        let handles: Vec<u64> = (0..10_000).map(|object| add(&table, object)).collect();
        for (handle, object) in handles.iter().zip(0..) {
            assert_eq!(read(&table, *handle), Some(object));
        }
        assert_eq!(table.remove_all(|object| object % 2 == 0).len(), 5_000);
        assert_eq!(handles.iter().filter(|handle| read(&table, **handle).is_some()).count(), 5_000);
    }

    #[test]
    fn of_many_threads_one_removes_an_object() {
        let table = table();
        for _ in 0..1_000 {
            let handle = add(&table, 1);
            let removed: usize = std::thread::scope(|scope| {
                let remove = || usize::from(table.remove(handle).is_some());
                let threads = [scope.spawn(remove), scope.spawn(remove)];
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(removed, 1);
        }
    }
}
