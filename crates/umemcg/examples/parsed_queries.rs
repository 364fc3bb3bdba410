//! A cache of your own as a shrinker: parsed queries, charged to the tenant that caused them, and
//! taken back from that tenant when it is at its limit.
//! `cargo run -p umemcg --example parsed_queries`

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use umemcg::shrinker::{AccountedCharge, ListLru, ListSlot, Verdict};
use umemcg::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg::{Engine, EngineConfig, Group, StatItem};

/// The size of a parsed query, in bytes.
const QUERY_BYTES: u64 = 4096;

/// The cache: queries by number. Each has a place in lists ordered by age.
#[derive(Debug)]
struct Queries {
    engine: Arc<Engine>,
    lists: ListLru,
    parsed: Mutex<HashMap<u64, Parsed>>,
}

#[derive(Debug)]
struct Parsed {
    place: ListSlot,
    _charge: AccountedCharge,
}

impl Queries {
    fn register(engine: &Arc<Engine>) -> (Arc<Self>, Registration) {
        let id = engine.reserve_shrinker();
        let lists = engine.list_lru(&id, 0);
        let queries = Arc::new(Self { engine: Arc::clone(engine), lists, parsed: Mutex::default() });
        let registration = engine.register_shrinker(id, Arc::<Self>::clone(&queries));
        (queries, registration)
    }

    /// Charges first, which may reclaim older queries of the same tenant; no lock is held then.
    fn parse(&self, tenant: &Arc<Group>, number: u64) -> Result<(), Box<dyn Error>> {
        let charge = self.engine.charge(tenant, QUERY_BYTES)?;
        let charge = AccountedCharge::new(charge, StatItem::SlabReclaimable);
        let (owner, place) = (charge.owner(), self.lists.reserve(number)?);
        self.parsed.lock().unwrap().insert(number, Parsed { place, _charge: charge });
        self.lists.add(owner, place);
        Ok(())
    }
}

impl Shrinker for Queries {
    fn name(&self) -> String {
        "queries".into()
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.lists.count(target.group) {
            0 => Count::Empty,
            nr => Count::Objects(nr),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let mut oldest = Vec::new();
        self.lists.walk(target.group, nr, |_, number, _| {
            oldest.push(number);
            Verdict::Removed
        });
        let mut parsed = self.parsed.lock().unwrap();
        let gone: Vec<Parsed> = oldest.iter().filter_map(|number| parsed.remove(number)).collect();
        drop(parsed);
        gone.iter().for_each(|query| self.lists.release(query.place));
        let freed_bytes = gone.len() as u64 * QUERY_BYTES;
        Scan::Done(Scanned { scanned: oldest.len() as u64, freed_bytes, releasing_bytes: 0 })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let objects = self.lists.count(target.group);
        Usage { objects, reclaimable: objects, bytes: objects * QUERY_BYTES }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(EngineConfig::new(64 << 20))?;
    let (queries, _registration) = Queries::register(&engine);
    let tenants = ["a", "b"].map(|name| engine.create_group(engine.root(), name.as_ref()));
    for tenant in tenants {
        let tenant = tenant?;
        engine.set_limit(&tenant, 1 << 20)?;
        let first = if &*tenant.name() == "a" { 0 } else { 1_000_000 };
        for number in first..first + 10_000 {
            queries.parse(&tenant, number)?;
        }
        println!("{}: {} bytes in use", tenant.path().display(), tenant.usage_bytes());
        for line in engine.slab_usage(&tenant) {
            println!("  {}: {} objects, {} bytes", line.name, line.usage.objects, line.usage.bytes);
        }
        assert!(tenant.usage_bytes() <= 1 << 20);
    }
    Ok(())
}
