//! The benefit of the eviction order: traces on which least-recently-used does badly. The streams
//! are the same every time.

use std::collections::{BTreeMap, HashMap};

use crate::object_cache::{VALUE_BYTES, builder, engine, group, limit};

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `len` keys below `nr` with Zipf's distribution of exponent 0.99.
fn zipf(nr: u64, len: usize) -> Vec<u64> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=nr)
        .map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        })
        .collect();
    let mut random = Random(0x1234_5678_9abc_def1);
    (0..len)
        .map(|_| {
            let at = random.unit() * sum;
            cumulated.partition_point(|&there| there < at) as u64
        })
        .collect()
}

/// Between stretches of a trace, keys that are asked for once.
fn with_scans(trace: &[u64], every: usize, scan: u64) -> Vec<u64> {
    let mut out = Vec::new();
    let mut fresh = 1 << 40;
    for stretch in trace.chunks(every) {
        out.extend_from_slice(stretch);
        out.extend(fresh..fresh + scan);
        fresh += scan;
    }
    out
}

fn hits_of_lru(trace: &[u64], capacity: usize) -> usize {
    let (mut used, mut by_age) = (HashMap::new(), BTreeMap::new());
    let mut hits = 0;
    for (now, &key) in trace.iter().enumerate() {
        match used.insert(key, now) {
            Some(before) => {
                hits += 1;
                by_age.remove(&before);
            }
            None if used.len() > capacity => {
                let (_, oldest) = by_age.pop_first().unwrap();
                used.remove(&oldest);
            }
            None => {}
        }
        by_age.insert(now, key);
    }
    hits
}

/// Hits, and the most objects that were ever there.
fn hits_of_ours(trace: &[u64], limit_bytes: u64) -> (usize, usize) {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, limit_bytes);
    let cache = builder(&engine).build();
    let (mut hits, mut most) = (0, 0);
    for (at, &key) in trace.iter().enumerate() {
        match cache.get(&key) {
            Some(_) => hits += 1,
            None => cache.insert(&tenant, key, key).unwrap(),
        }
        if at % 512 == 0 {
            most = most.max(cache.len());
        }
    }
    let stats = cache.stats();
    assert_eq!(stats.hits as usize, hits);
    assert_eq!((stats.hits + stats.misses) as usize, trace.len());
    (hits, most)
}

/// Compares with a list of at least as many objects as ever were in the cache.
fn check(trace: &[u64], nr_objects: u64, least_gain: f64) {
    let (ours, most) = hits_of_ours(trace, nr_objects * (VALUE_BYTES + 200));
    let capacity = most.max(nr_objects as usize);
    let lru = hits_of_lru(trace, capacity);
    let gain = (ours as f64 - lru as f64) / trace.len() as f64;
    assert!(gain >= least_gain, "{ours} hits against {lru} of {}, with {capacity} objects", trace.len());
}

#[test]
fn a_skewed_stream_hits_more_often_than_with_lru() {
    check(&zipf(20_000, 200_000), 1000, 0.04);
}

#[test]
fn scans_do_not_push_out_what_is_in_use() {
    check(&with_scans(&zipf(20_000, 200_000), 5000, 2000), 1000, 0.05);
}

#[test]
fn a_loop_longer_than_the_cache_still_hits() {
    let trace: Vec<u64> = (0..40).flat_map(|_| 0..1300).collect();
    check(&trace, 1000, 0.2);
}
