//! Panics of the embedder's code, at every call of it in turn: keys, values, hasher, weigher,
//! listener, loader, clock. Whatever panics, what remains is charged to the byte, is on its list,
//! and goes.

use std::cell::Cell;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use umemcg::objects::Lookup;
use umemcg::{ChargeEffort, DropCaches, Engine, Group, ObjectCache, StatItem, shrinker};
use umemcg_base::clock::Clock;

use crate::object_cache::{VALUE_BYTES, check_nothing_is_left, engine, group, limit};

/// The embedder's code that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Hash,
    Eq,
    CloneKey,
    DropKey,
    CloneValue,
    DropValue,
    Weigher,
    Listener,
    Loader,
    Clock,
}

const ALL: [Code; 10] = [
    Code::Hash,
    Code::Eq,
    Code::CloneKey,
    Code::DropKey,
    Code::CloneValue,
    Code::DropValue,
    Code::Weigher,
    Code::Listener,
    Code::Loader,
    Code::Clock,
];

thread_local! {
    /// The code that panics, and the number of its calls before that.
    static FUSE: Cell<Option<(Code, u64)>> = const { Cell::new(None) };
}

/// The embedder's code is called here.
fn call(code: Code) {
    match FUSE.get() {
        Some((armed, 0)) if armed == code && !std::thread::panicking() => {
            // Once: a second panic while the first unwinds would end the process, and rightly.
            FUSE.set(None);
            panic!("{code:?} panics");
        }
        Some((armed, left)) if armed == code => FUSE.set(Some((code, left.saturating_sub(1)))),
        _ => {}
    }
}

static NR_VALUES: AtomicI64 = AtomicI64::new(0);

#[derive(Debug)]
struct Key(u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        call(Code::Hash);
        self.0.hash(state);
    }
}
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        call(Code::Eq);
        self.0 == other.0
    }
}
impl Eq for Key {}
impl Clone for Key {
    fn clone(&self) -> Self {
        call(Code::CloneKey);
        Self(self.0)
    }
}
impl Drop for Key {
    fn drop(&mut self) {
        call(Code::DropKey);
    }
}

#[derive(Debug)]
struct Value;

impl Value {
    fn new() -> Self {
        NR_VALUES.fetch_add(1, Relaxed);
        Self
    }
}
impl Clone for Value {
    fn clone(&self) -> Self {
        call(Code::CloneValue);
        Self::new()
    }
}
impl Drop for Value {
    fn drop(&mut self) {
        NR_VALUES.fetch_sub(1, Relaxed);
        call(Code::DropValue);
    }
}

/// The same order in every run.
#[derive(Debug, Clone, Copy)]
struct Plain;

impl BuildHasher for Plain {
    type Hasher = DefaultHasher;
    fn build_hasher(&self) -> DefaultHasher {
        DefaultHasher::new()
    }
}

#[derive(Debug, Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        call(Code::Clock);
        Duration::from_millis(self.0.load(Relaxed))
    }
}

type Cache = ObjectCache<Key, Value, Plain>;

/// The operation to try.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A group at its limit, which gives up its own objects.
    Limited,
    /// A bound of the cache's own.
    Bounded,
    /// Objects that become too old.
    Aging,
}

struct Ground {
    cache: Option<Cache>,
    clock: Arc<Ticking>,
    tenant: Arc<Group>,
    engine: Arc<Engine>,
    /// The name of this run.
    run: String,
}

impl Ground {
    fn new(engine: &Arc<Engine>, kind: Kind, run: String) -> Self {
        let tenant = group(engine, engine.root(), "tenant");
        let clock = Arc::new(Ticking::default());
        let mut builder = ObjectCache::builder(engine, "values").hasher(Plain).shards(1);
        builder = builder
            .weigher(|_, _| {
                call(Code::Weigher);
                VALUE_BYTES
            })
            .listener(|_, _, _| call(Code::Listener))
            .clock(Arc::clone(&clock) as _);
        match kind {
            Kind::Limited => limit(engine, &tenant, 40 * VALUE_BYTES),
            Kind::Bounded => builder = builder.bytes_max(40 * VALUE_BYTES),
            Kind::Aging => builder = builder.time_to_live(Duration::from_secs(1)),
        }
        Self { cache: Some(builder.build()), clock, tenant, engine: Arc::clone(engine), run }
    }

    /// One call of the embedder's; what panics comes out of it, or not.
    fn one(&self, act: impl FnOnce(&Cache, &Arc<Group>)) {
        let cache = self.cache.as_ref().unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| act(cache, &self.tenant)));
        cache.wait_for_workers();
        self.check();
    }

    /// Everything that is there is charged, on a list, and counted; and nothing else is.
    fn check(&self) {
        let cache = self.cache.as_ref().unwrap();
        let (stats, len) = (cache.stats(), cache.len());
        assert_eq!(stats.objects, len as u64, "objects by the figures, and in the table, {}", self.run);
        assert_eq!(self.engine.reclaimer().nr_list_slots(), len, "places in lists, {}", self.run);
        let table = self.engine.slab_usage(&self.tenant);
        let listed: u64 = table.iter().map(|line: &shrinker::SlabUsage| line.usage.reclaimable).sum();
        assert_eq!(listed, len as u64, "objects on lists, {}", self.run);
        assert_eq!(
            self.tenant.stat_total(StatItem::SlabReclaimable),
            stats.bytes as i64,
            "bytes, {}",
            self.run
        );
        assert_eq!(NR_VALUES.load(Relaxed), len as i64, "values, {}", self.run);
    }

    /// A bit of everything.
    fn work(&self) {
        for n in 0..70 {
            self.one(|cache, tenant| drop(cache.insert(tenant, Key(n), Value::new())));
            if n % 3 == 0 {
                self.one(|cache, _| drop(cache.get(&Key(n / 2))));
            }
        }
        for n in (0..70).step_by(7) {
            self.one(|cache, tenant| drop(cache.insert(tenant, Key(n), Value::new())));
            self.one(|cache, _| drop(cache.remove(&Key(n + 1))));
            let load = || {
                call(Code::Loader);
                Value::new()
            };
            self.one(|cache, tenant| drop(cache.get_or_insert_with(tenant, Key(n + 1), load)));
        }
        self.one(|_, tenant| _ = self.engine.reclaimer().charge(tenant, 8 * VALUE_BYTES, ChargeEffort::Full));
        self.clock.0.fetch_add(1500, Relaxed);
        self.one(|cache, _| drop(cache.get(&Key(69))));
        self.one(|cache, _| cache.sweep_expired());
        for n in 100..110 {
            self.one(|cache, tenant| drop(cache.insert(tenant, Key(n), Value::new())));
        }
        self.one(|_, _| self.engine.drop_caches(DropCaches::Objects));
        for n in 200..230 {
            self.one(|cache, tenant| drop(cache.insert(tenant, Key(n), Value::new())));
        }
        self.one(|cache, _| cache.clear());
        for n in 400..405 {
            self.one(|cache, tenant| drop(cache.insert_soon(tenant, Key(n), Value::new())));
            self.one(|cache, tenant| match cache.lookup(tenant, Key(n + 1)) {
                Lookup::Load(guard) if n % 2 == 0 => drop(guard.insert_soon(Value::new())),
                other => drop(other),
            });
        }
        self.one(|cache, _| cache.clear());
        for n in 300..303 {
            self.one(|cache, tenant| drop(cache.insert(tenant, Key(n), Value::new())));
        }
    }

    fn end(mut self) {
        drop(self.cache.take());
        FUSE.set(None);
        check_nothing_is_left(&self.engine, &[&self.tenant]);
        assert_eq!(NR_VALUES.load(Relaxed), 0);
        self.engine.remove_group(&self.tenant).unwrap();
    }
}

/// Lets each call of `code` panic in turn, in runs of their own. After the first some, not each.
fn try_each_call(kind: Kind, code: Code) -> u64 {
    let engine = engine(16);
    let (mut nr_runs, mut at) = (0, 0);
    loop {
        let ground = Ground::new(&engine, kind, format!("{kind:?} {code:?} {at}"));
        FUSE.set(Some((code, at)));
        ground.work();
        let has_panicked = FUSE.get().is_none();
        ground.end();
        if !has_panicked {
            return nr_runs;
        }
        nr_runs += 1;
        at += 1 + at / 40;
    }
}

/// Without the noise of a few thousand panics.
fn quietly<R>(run: impl FnOnce() -> R) -> R {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if !ALL.iter().any(|code| said == format!("{code:?} panics")) {
            usual(panic);
        }
    }));
    let result = run();
    drop(std::panic::take_hook());
    result
}

#[test]
fn a_panic_at_any_call_of_the_embedders_code_costs_nothing() {
    quietly(|| {
        for kind in [Kind::Limited, Kind::Bounded, Kind::Aging] {
            for code in ALL {
                let nr_runs = try_each_call(kind, code);
                let is_called = code != Code::Clock || matches!(kind, Kind::Aging);
                assert_eq!(nr_runs > 0, is_called, "{code:?} in {kind:?}");
            }
        }
    });
}
