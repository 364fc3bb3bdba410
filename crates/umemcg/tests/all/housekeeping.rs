//! Housekeeping: memory that is not used any more goes back to the operating system.

use std::time::{Duration, Instant};

use crate::common::{MemStore, engine, group, pattern, read_all};
use umemcg::files::Readahead;

const MIB: usize = 1 << 20;

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "condition not reached in time");
        std::thread::yield_now();
    }
}

#[test]
fn resident_memory_follows_usage_down() {
    let engine = engine(64 << 20);
    let tenant = group(&engine, "a", 64 << 20);
    let files: Vec<_> = (0..32u64)
        .map(|i| {
            let file = engine.open_file(MemStore::with(&pattern(i, 0, MIB)), MIB as u64).unwrap();
            read_all(&file, &tenant);
            file
        })
        .collect();
    assert!(engine.arena().resident_bytes() >= 32 << 20);
    // Keep every 16th page: blocks are sparse now, and only their eviction can empty them.
    for file in &files {
        for page in 0..256u64 {
            if page % 16 != 0 {
                let offset = page * 4096;
                file.zero_range(&tenant, offset, 4096, || Ok(())).unwrap();
            }
        }
    }
    wait_until(|| {
        engine.trim();
        engine.arena().resident_bytes() <= 8 << 20
    });
    for (i, file) in files.iter().enumerate() {
        let page = file.read(&tenant, 16 * 4096, 4096, &Readahead::new()).unwrap();
        assert!(page.to_vec() == pattern(i as u64, 16 * 4096, 4096));
    }
}
