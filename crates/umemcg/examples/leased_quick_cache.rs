//! A cache of another maker, quick_cache, under the limit of a group: it fills the room that the
//! group has, gives way to a buffer of the same group, and grows back.

use std::ffi::OsStr;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use umemcg::{Engine, EngineConfig, Resizable};

#[derive(Clone)]
struct ByLength;

impl Weighter<u64, Arc<[u8]>> for ByLength {
    fn weight(&self, _key: &u64, value: &Arc<[u8]>) -> u64 {
        // Includes the memory of the cache and of the allocator for each value.
        value.len() as u64 + 128
    }
}

struct Thumbnails(Cache<u64, Arc<[u8]>, ByLength>);

impl Resizable for Thumbnails {
    fn used_bytes(&self) -> u64 {
        self.0.weight()
    }

    fn set_capacity(&self, bytes: u64) {
        self.0.set_capacity(bytes);
    }
}

/// Also run by the tests.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    const MIB: u64 = 1 << 20;
    let engine = Engine::new(EngineConfig::new(64 * MIB))?;
    let tenant = engine.create_group(engine.root(), OsStr::new("tenant"))?;
    engine.set_max(&tenant, 16 * MIB);

    let thumbnails = Arc::new(Thumbnails(Cache::with_weighter(10_000, 0, ByLength)));
    let lease = engine.lease(&tenant, "thumbnails", Arc::clone(&thumbnails) as _, 32 * MIB);
    let browse = || {
        for id in 0..20_000 {
            thumbnails.0.insert(id, vec![0; 4096].into());
            if id % 100 == 0 {
                // The engine does this ten times a second; the example does not wait for it.
                lease.adjust();
            }
        }
    };
    let show = |when: &str| {
        let (used, charged) = (thumbnails.used_bytes(), lease.charged_bytes());
        println!("{when}: {} KiB used, {} KiB charged", used >> 10, charged >> 10);
        assert!(used <= charged && tenant.usage_bytes() <= 16 * MIB);
        used
    };

    browse();
    let full = show("filled");
    assert!(full > 12 * MIB, "80 MB of thumbnails would be there without a limit");

    let buffer = engine.charge(&tenant, 8 * MIB)?;
    let beside = show("beside a buffer of 8 MiB");
    assert!(beside <= 8 * MIB);

    drop(buffer);
    browse();
    let again = show("after the buffer");
    assert!(again * 10 >= full * 9);
    Ok(())
}
