//! The table of file handles: the object behind each handle of the kernel. Every read and write
//! looks up a handle, so a lookup takes no lock, and writes no cache line touched by another
//! thread's lookup.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use umemcg_base::{LeafMutex, Table};

/// An open object and its handle.
#[derive(Debug)]
pub struct HandleEntry<T> {
    handle: u64,
    /// The object behind the handle.
    pub value: Arc<T>,
}

/// Open objects by handle. A handle is reused only after its generation has wrapped around 2^32.
#[derive(Debug)]
pub struct HandleTable<T> {
    slots: Table<ArcSwapOption<HandleEntry<T>>>,
    free: LeafMutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    places: Vec<u32>,
    nr_places: u32,
    /// Upper half of the next handle.
    serial: u32,
}

impl<T> HandleTable<T> {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self { slots: Table::new(), free: LeafMutex::default() }
    }

    /// Gives `value` a handle.
    pub fn open(&self, value: Arc<T>) -> u64 {
        let (place, serial) = {
            let mut free = self.free.lock();
            let place = free.places.pop().unwrap_or_else(|| {
                free.nr_places += 1;
                free.nr_places - 1
            });
            free.serial = free.serial.wrapping_add(1);
            (place, free.serial)
        };
        let handle = u64::from(serial) << 32 | u64::from(place);
        self.slots
            .get_or_grow(place, ArcSwapOption::empty)
            .store(Some(Arc::new(HandleEntry { handle, value })));
        handle
    }

    /// Returns the object behind a handle. Cheap; to be held only during a request.
    #[inline]
    pub fn get(&self, handle: u64) -> Option<HandleRef<T>> {
        let guard = self.slots.get(handle as u32)?.load();
        guard.as_ref().is_some_and(|opened| opened.handle == handle).then_some(HandleRef(guard))
    }

    /// Closes a handle and returns its value. Of several threads closing it at the same time, one
    /// gets the value.
    pub fn close(&self, handle: u64) -> Option<Arc<T>> {
        let slot = self.slots.get(handle as u32)?;
        let seen = slot.load_full().filter(|opened| opened.handle == handle)?;
        // The thread that removes the object frees its slot. Until then the slot is not reused.
        let taken = slot.compare_and_swap(&Some(Arc::clone(&seen)), None);
        if !taken.as_ref().is_some_and(|taken| Arc::ptr_eq(taken, &seen)) {
            return None;
        }
        self.free.lock().places.push(handle as u32);
        Some(Arc::clone(&seen.value))
    }

    /// Closes all handles; returns their values.
    pub fn close_all(&self) -> Vec<Arc<T>> {
        self.close_where(|_| true)
    }

    /// Returns an open value accepted by `is_meant`. Walks the table.
    pub fn find(&self, is_meant: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let nr_places = self.free.lock().nr_places;
        (0..nr_places)
            .filter_map(|place| self.slots.get(place)?.load_full())
            .find(|opened| is_meant(&opened.value))
            .map(|opened| Arc::clone(&opened.value))
    }

    /// Closes the handles whose values `is_meant` accepts. Returns these values.
    pub fn close_where(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let nr_places = self.free.lock().nr_places;
        (0..nr_places)
            .filter_map(|place| {
                let opened = self.slots.get(place)?.load_full()?;
                if is_meant(&opened.value) { self.close(opened.handle) } else { None }
            })
            .collect()
    }

    /// Returns the number of open handles.
    pub fn len(&self) -> usize {
        let free = self.free.lock();
        free.nr_places as usize - free.places.len()
    }

    /// Returns whether no handle is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The object behind a handle, kept open while this lives.
#[derive(Debug)]
pub struct HandleRef<T>(Guard<Option<Arc<HandleEntry<T>>>>);

impl<T> std::ops::Deref for HandleRef<T> {
    type Target = Arc<T>;
    #[inline]
    fn deref(&self) -> &Arc<T> {
        match &*self.0 {
            Some(opened) => &opened.value,
            None => unreachable!("a held handle stands for something"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_stays_invalid_when_its_slot_is_reused() {
        let table = HandleTable::new();
        let first = table.open(Arc::new(1));
        assert_eq!(**table.get(first).unwrap(), 1);
        assert_eq!(table.close(first).as_deref(), Some(&1));
        let second = table.open(Arc::new(2));
        assert_eq!(first as u32, second as u32);
        assert!(table.get(first).is_none() && table.close(first).is_none());
        assert_eq!(**table.get(second).unwrap(), 2);
        assert!(table.get(u64::MAX).is_none());
    }

    #[test]
    fn of_many_closers_of_a_handle_one_gets_what_it_stood_for() {
        let table = HandleTable::new();
        for round in 0..200 {
            let handle = table.open(Arc::new(round));
            let winners: usize = std::thread::scope(|scope| {
                let closing = [(); 3].map(|()| scope.spawn(|| usize::from(table.close(handle).is_some())));
                closing.map(|thread| thread.join().unwrap()).iter().sum()
            });
            assert_eq!((winners, table.len()), (1, 0));
        }
    }

    #[test]
    fn what_is_meant_is_closed_and_nothing_else() {
        let table = HandleTable::new();
        let handles: Vec<u64> = (0..10).map(|n| table.open(Arc::new(n))).collect();
        assert_eq!(table.close_where(|n| n % 2 == 1).len(), 5);
        assert!(table.get(handles[1]).is_none() && table.get(handles[2]).is_some());
    }

    #[test]
    fn closing_all_leaves_nothing_open() {
        let table = HandleTable::new();
        let handles: Vec<u64> = (0..200).map(|n| table.open(Arc::new(n))).collect();
        table.close(handles[7]);
        assert_eq!(table.len(), 199);
        assert_eq!(table.close_all().len(), 199);
        assert!(table.is_empty());
    }
}
