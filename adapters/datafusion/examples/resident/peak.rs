//! [`Peaks`]: resident, allocated and charged bytes at the peak of a query.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use umemcg::{Engine, EngineConfig, Group};
use umemcg_datafusion::Tenant;

use crate::ALLOCATED;
use crate::tpch::{run, session, store};

const SAMPLE_EVERY: Duration = Duration::from_millis(1);

/// Bytes at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Resident memory of the process.
    pub(crate) resident: u64,
    /// Allocated and not freed, without the allocator's overhead.
    pub(crate) allocated: u64,
    /// Charged to the tenant.
    pub(crate) charged: u64,
}

impl Sample {
    fn now(group: &Group) -> Self {
        Self {
            resident: resident_bytes(),
            allocated: ALLOCATED.allocated() as u64,
            charged: group.usage_bytes(),
        }
    }

    /// Returns the excess over another sample.
    fn above(&self, idle: &Self) -> Self {
        Self {
            resident: self.resident.saturating_sub(idle.resident),
            allocated: self.allocated.saturating_sub(idle.allocated),
            charged: self.charged.saturating_sub(idle.charged),
        }
    }
}

/// A tenant running queries one after the other.
pub(crate) struct Peaks {
    engine: Arc<Engine>,
    tenant: Arc<Tenant>,
}

impl Peaks {
    /// Creates a tenant with a limit of `mib` MiB.
    pub(crate) fn new(mib: u64) -> Self {
        let engine = Engine::new(EngineConfig::new(mib << 21)).expect("an engine");
        let group = engine.create_group(engine.root(), "tenant".as_ref()).expect("a group");
        engine.set_max(&group, mib << 20);
        let tenant = Tenant::builder(&engine, &group).build().expect("a tenant");
        Self { engine, tenant }
    }

    /// Runs a query with empty caches and a trimmed heap; returns the sample with the most resident
    /// memory, less the sample before the query.
    pub(crate) async fn of(&self, query: &str) -> Sample {
        let group = self.tenant.group();
        // Objects in use stay.
        let _ = self.engine.reclaim(group, group.usage_bytes());
        self.engine.trim();
        let idle = Sample::now(group);
        let is_over = Arc::new(AtomicBool::new(false));
        let sampler = {
            let (group, is_over) = (Arc::clone(group), Arc::clone(&is_over));
            thread::spawn(move || peak_until(&group, &is_over))
        };
        let runtime = self.tenant.runtime_builder().expect("a query").build().expect("a runtime");
        let store = Arc::new(self.tenant.cached_store("tpch://tables", store()));
        let session = session(Arc::new(runtime), store).await.expect("a session");
        run(&session, query).await.expect("the query succeeds");
        is_over.store(true, Relaxed);
        sampler.join().expect("samples").above(&idle)
    }
}

fn peak_until(group: &Group, is_over: &AtomicBool) -> Sample {
    let mut peak = Sample::default();
    while !is_over.load(Relaxed) {
        let now = Sample::now(group);
        if now.resident > peak.resident {
            peak = now;
        }
        thread::sleep(SAMPLE_EVERY);
    }
    peak
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a number of pages");
    pages * 4096
}
