//! The table of files: a number for each file, which frame records store as its identity, and the
//! lookup of a file by its number.

use std::fmt;
use std::sync::{Arc, Weak};

use umemcg_base::{LeafMutex, Table};

/// Free numbers, and the highest number handed out.
#[derive(Debug, Default)]
struct Numbers {
    free: Vec<u32>,
    high: u32,
}

/// See the module text.
pub(crate) struct FileTable<F: 'static> {
    files: Table<LeafMutex<Weak<F>>>,
    numbers: LeafMutex<Numbers>,
}

impl<F> Default for FileTable<F> {
    fn default() -> Self {
        Self { files: Table::new(), numbers: LeafMutex::default() }
    }
}

/// The number of a file; given back when it is dropped, with the file.
pub(crate) struct FileNumber<F: 'static> {
    table: Arc<FileTable<F>>,
    id: u32,
}

impl<F> FileTable<F> {
    /// Takes an unused number.
    pub(crate) fn take_number(self: &Arc<Self>) -> FileNumber<F> {
        let mut numbers = self.numbers.lock();
        let id = numbers.free.pop().unwrap_or_else(|| {
            numbers.high += 1;
            numbers.high
        });
        FileNumber { table: Arc::clone(self), id }
    }

    /// Makes a file known by its number.
    pub(crate) fn publish(&self, id: u32, file: &Arc<F>) {
        *self.files.get_or_grow(id, || LeafMutex::new(Weak::new())).lock() = Arc::downgrade(file);
    }

    /// Returns the file with this number, if it lives.
    pub(crate) fn get(&self, id: u32) -> Option<Arc<F>> {
        self.files.get(id)?.lock().upgrade()
    }
}

impl<F> FileNumber<F> {
    /// Returns the number; never 0.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

impl<F> fmt::Debug for FileNumber<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl<F> Drop for FileNumber<F> {
    fn drop(&mut self) {
        if let Some(slot) = self.table.files.get(self.id) {
            // A weak reference left here would keep the file's memory allocated.
            *slot.lock() = Weak::new();
        }
        self.table.numbers.lock().free.push(self.id);
    }
}
