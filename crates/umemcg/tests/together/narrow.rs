//! Rounds for one narrow window each, so small that hundreds of them take a second:
//! what the large rounds find once in many hours.

use std::sync::Arc;
use std::time::Duration;

use umemcg::{Engine, EngineConfig};
use umemcg_base::schedule::{self, Policy};

use crate::disk::Random;
use crate::store::{Store, StoreFile};

/// Threads are held often, at any atomic operation, for long.
const POLICY: Policy = Policy { lock: 2, atomic: 8, hold: 4, hold_steps: 1_000 };
const NR_ROUNDS: u64 = 5_000;

/// One thread dirties a page, another writes to the same page meanwhile, and syncs: its own bytes
/// are durable, whichever of the two has made the page dirty.
#[test]
fn a_write_is_synced_although_another_is_dirtying_its_page() {
    let nr_lost = schedule::run(1, POLICY, || {
        let engine = Engine::new(EngineConfig::new(4 << 20)).unwrap();
        let store = Store::new(1, 1);
        let there = StoreFile { store: Arc::clone(&store), file: 0, begins_reads: false };
        let file = engine.open_file(Arc::new(there), 0).unwrap();
        let (mut random, mut nr_lost) = (Random(1), 0);
        for round in 0..NR_ROUNDS {
            let value = 1 + (round % 200) as u8;
            file.write(engine.root(), 0, &[0; 4096]).unwrap();
            file.fsync(false, &file.sample_error()).unwrap();
            let other = {
                let (file, group) = (Arc::clone(&file), Arc::clone(engine.root()));
                schedule::spawn("other", move || file.write(&group, 0, &[value; 512]).unwrap()).unwrap()
            };
            schedule::sleep(Duration::from_nanos(random.below(30_000) as u64));
            file.write(engine.root(), 512, &[value; 512]).unwrap();
            if random.below(2) == 0 {
                file.fsync(false, &file.sample_error()).unwrap();
            } else {
                assert!(engine.sync_all(Duration::from_secs(600)).is_empty());
            }
            let kept = store.disk.after_cut(|_| Vec::new()).remove(0);
            nr_lost += usize::from(kept[512..1024] != [value; 512]);
            other.join().unwrap();
        }
        nr_lost
    });
    assert_eq!(nr_lost, 0, "writes that a sync has acknowledged, and a cut of the power forgot");
}
