//! Stores that have files and no dirty data cost no thread. Alone in its process, because it counts
//! threads.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{MemStore, pool};

/// Both tests count the threads of the process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn nr_flushers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "umemcg-flush")
        })
        .count()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_flusher_starts_with_dirty_data_and_ends_when_idle() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let pool = pool(16 << 20);
    let stores: Vec<_> = (0..500).map(MemStore::on_store).collect();
    let files: Vec<_> =
        stores.iter().map(|store| pool.open_file(std::sync::Arc::clone(store) as _, 0).unwrap()).collect();
    until("those of another test have gone", || nr_flushers() == 0);
    assert_eq!(nr_flushers(), 0, "five hundred stores without writers");
    for (n, file) in files.iter().enumerate().take(3) {
        file.write(pool.root(), 0, &[n as u8; 5000]).unwrap();
        file.start_writeback();
    }
    until("all is written", || files.iter().all(|file| file.is_stable()));
    assert!((1..=3).contains(&nr_flushers()));
    assert_eq!(stores[2].live(), [2; 5000]);
    until("the flushers have gone", || nr_flushers() == 0);
    files[1].write(pool.root(), 0, b"again").unwrap();
    files[1].start_writeback();
    until("a new flusher writes", || files[1].is_stable());
    assert_eq!(stores[1].live()[..5], *b"again");
}

#[test]
fn stores_take_turns_at_threads_and_a_few_may_hang() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let pool = pool(64 << 20);
    let stores: Vec<_> = (1000..1400).map(MemStore::on_store).collect();
    let files: Vec<_> =
        stores.iter().map(|store| pool.open_file(std::sync::Arc::clone(store) as _, 0).unwrap()).collect();
    for store in &stores[..20] {
        store.hang();
    }
    for (n, file) in files.iter().enumerate() {
        file.write(pool.root(), 0, &[n as u8; 3000]).unwrap();
        file.start_writeback();
    }
    // An ending flusher is listed for a moment longer.
    until("there are 128 at most", || nr_flushers() <= 128);
    until("all but those that hang are written", || files[20..].iter().all(|file| file.is_stable()));
    assert!(files[..20].iter().all(|file| !file.is_stable()));
    for store in &stores[..20] {
        store.release();
    }
    until("the others are written, too", || files.iter().all(|file| file.is_stable()));
    assert!(stores.iter().enumerate().all(|(n, store)| store.live() == [n as u8; 3000]));
}
