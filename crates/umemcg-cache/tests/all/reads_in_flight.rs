//! A thousand reads in flight, and the threads of this program. The only test of its program: it
//! counts them, and raises its limit of descriptors.

use std::sync::Arc;

use crate::common::late_store::{Answerer, LateStore};
use crate::common::steps::{Steps, Wanted};
use crate::common::{group, pattern, pool};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umemcg_cache::BackingStore;

const NR_FILES: usize = 10;
/// The reads are of two tenants on two stores, because a group or a store may have half of them.
const NR_TENANTS: usize = 2;
const NR_STORES: u64 = 2;
const NR_READS: usize = 1000;
const PAGE: usize = 4096;
/// Threads that they may take, the store's one included.
const NR_THREADS_MAX: usize = 10;

fn nr_threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_thousand_reads_in_flight_take_no_threads() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let pool = pool(64 << 20);
    let tenants: Vec<_> = (0..NR_TENANTS).map(|nr| group(&pool, &format!("t{nr}"), 32 << 20)).collect();
    let nr_before = nr_threads();
    let answerer = Answerer::start();
    answerer.hold();
    let contents: Vec<_> = (0..NR_FILES as u64).map(|file| pattern(file, 0, 512 * PAGE)).collect();
    let open = |(id, bytes): (u64, &Vec<u8>)| {
        let store: Arc<dyn BackingStore> = LateStore::on_store(id % NR_STORES, bytes.clone(), &answerer);
        pool.open_file(store, bytes.len() as u64).unwrap()
    };
    let files: Vec<_> = (0..).zip(&contents).map(open).collect();
    // Not side by side: each is a read of the store.
    let place = |nr: usize| (nr % NR_FILES, (1 + nr / NR_FILES * 3) * PAGE);
    let wanted = |nr| {
        let (file, offset) = place(nr);
        let tenant = &tenants[nr / NR_FILES % NR_TENANTS];
        Wanted::new(&files[file], tenant, offset as u64, PAGE)
    };
    let steps = Steps::begin((0..NR_READS).map(wanted).collect());
    assert_eq!((answerer.nr_begun(), steps.nr_done()), (NR_READS, 0), "all are in flight");
    let nr_more = nr_threads() - nr_before;
    assert!(nr_more <= NR_THREADS_MAX, "{nr_more} threads for {NR_READS} reads");
    let charged: u64 = tenants.iter().map(|tenant| tenant.usage_bytes()).sum();
    assert!(charged >= (NR_READS * PAGE) as u64, "each page is charged before it is fetched: {charged}");
    answerer.release();
    for (nr, result) in steps.finish().into_iter().enumerate() {
        let (file, offset) = place(nr);
        assert!(result.unwrap() == contents[file][offset..offset + PAGE], "read {nr}");
    }
}
