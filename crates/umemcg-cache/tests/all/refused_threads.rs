//! A cache whose operating system refuses it threads: what is dirty is written all the same.

use std::time::{Duration, Instant};

use crate::common::{MemStore, pool};
use umemcg_base::clock::refuse_threads;
use umemcg_cache::File;

fn wait_until_stable(file: &File) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !file.is_stable() {
        assert!(Instant::now() < deadline, "it is not written");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

#[test]
fn a_store_that_was_refused_a_thread_gets_one_later() {
    let pool = pool(16 << 20);
    let store = MemStore::on_store(1);
    let file = pool.open_file(store.clone(), 0).unwrap();
    refuse_threads(1);
    file.write(pool.root(), 0, b"data").unwrap();
    assert_eq!(refuse_threads(0), 0, "one was refused");
    file.start_writeback();
    wait_until_stable(&file);
    assert_eq!(store.live(), b"data");
}

#[test]
fn a_store_refused_a_thread_needs_none_of_a_hanging_store() {
    let pool = pool(16 << 20);
    let (hanging, store) = (MemStore::on_store(1), MemStore::on_store(2));
    let stuck = pool.open_file(hanging.clone(), 0).unwrap();
    let file = pool.open_file(store.clone(), 0).unwrap();
    hanging.hang();
    stuck.write(pool.root(), 0, b"stuck").unwrap();
    stuck.start_writeback();
    refuse_threads(1);
    file.write(pool.root(), 0, b"data").unwrap();
    assert_eq!(refuse_threads(0), 0, "one was refused");
    file.start_writeback();
    wait_until_stable(&file);
    hanging.release();
    wait_until_stable(&stuck);
    assert_eq!((store.live(), hanging.live()), (b"data".to_vec(), b"stuck".to_vec()));
}

#[test]
fn a_store_without_a_thread_is_served_by_that_of_another() {
    let pool = pool(16 << 20);
    let stores = [MemStore::on_store(1), MemStore::on_store(2)];
    let files = stores.each_ref().map(|store| pool.open_file(store.clone(), 0).unwrap());
    refuse_threads(2);
    for file in &files {
        file.write(pool.root(), 0, b"data").unwrap();
    }
    assert_eq!(refuse_threads(0), 0, "both were refused");
    files[0].start_writeback();
    refuse_threads(u32::MAX);
    files[1].start_writeback();
    files.iter().for_each(|file| wait_until_stable(file));
    refuse_threads(0);
}

#[test]
fn a_sync_without_a_thread_writes_all_the_same() {
    let pool = pool(16 << 20);
    let stores = [MemStore::on_store(1), MemStore::on_store(2)];
    let files = stores.each_ref().map(|store| pool.open_file(store.clone(), 0).unwrap());
    refuse_threads(u32::MAX);
    for file in &files {
        file.write(pool.root(), 0, b"data").unwrap();
    }
    let lost = pool.sync_all(Duration::from_secs(60));
    refuse_threads(0);
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(stores.each_ref().map(|store| store.live()), [b"data", b"data"]);
}
