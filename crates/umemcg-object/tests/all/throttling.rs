//! A store that takes so many requests in a second, and refuses the others.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::servers::proxy::Proxy;
use crate::servers::{Moto, Server, bucket_at, client_at};
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStoreExt, RetryConfig};
use umemcg_vfs::bucket::{Bucket, BucketError, ObjectBody, ObjectInfo};

const LEN: u64 = 100_000;
const NR: usize = 60;
const PER_SECOND: u32 = 20;
const AT_ONCE: u32 = 5;
/// Rounds until a limit has to be of use.
const NR_ROUNDS_MAX: usize = 10;
/// Longest wait for what is bound to come.
const LONG: Duration = Duration::from_secs(60);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A server with an object `o` in a bucket, and a proxy before it.
fn world() -> (Moto, Proxy) {
    let moto = Moto::start();
    let store = moto.store("busy");
    block_on(store.put(&Path::from("o"), vec![7; LEN as usize].into())).unwrap();
    let proxy = Proxy::before(&moto.endpoint());
    (moto, proxy)
}

type Ended = (usize, Result<(), BucketError>);

/// Tells how many bytes came.
#[derive(Debug)]
struct Counter(usize, std::sync::mpsc::Sender<Ended>);

impl ObjectBody for Counter {
    fn take(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
    fn end(self: Box<Self>, result: Result<(), BucketError>) {
        self.1.send((self.0, result)).unwrap();
    }
}

/// Begins [`NR`] reads.
fn begin(bucket: &dyn Bucket, info: &ObjectInfo) -> Receiver<Ended> {
    let (sender, ended) = channel();
    for nr in 0..NR as u64 {
        bucket.begin_read("o", info, nr * 1000..(nr + 1) * 1000, Box::new(Counter(0, sender.clone())));
    }
    ended
}

fn all_end_well(ended: &Receiver<Ended>, nr: usize) {
    for _ in 0..nr {
        let (len, result) = ended.recv_timeout(LONG).unwrap();
        assert!(len == 1000 && result.is_ok(), "{len} {result:?}");
    }
}

/// Returns how many requests the store refused of as many reads by the library alone, which asks
/// again as ours does.
fn nr_refused_without(proxy: &Proxy) -> usize {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(5),
        base: 3.0,
    };
    let retries = RetryConfig { backoff, max_retries: 100, retry_timeout: LONG };
    let store = client_at(&proxy.endpoint(), "busy").with_retry(retries).build().unwrap();
    proxy.throttle(PER_SECOND, AT_ONCE);
    block_on(async {
        let path = Path::from("o");
        let reads = (0..NR as u64).map(|nr| store.get_range(&path, nr * 1000..(nr + 1) * 1000));
        for read in futures_util::future::join_all(reads).await {
            assert_eq!(read.unwrap().len(), 1000);
        }
    });
    proxy.nr_throttled()
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_store_that_throttles_is_asked_less() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "busy");
    let info = bucket.head("o").unwrap();
    let without = nr_refused_without(&proxy);
    proxy.throttle(PER_SECOND, AT_ONCE);
    // What nothing was known of yet is refused, too.
    all_end_well(&begin(&*bucket, &info), NR);
    let first = proxy.nr_throttled();
    // Again while a busy machine has the requests of a second come at once.
    let mut with = Vec::new();
    while with.last().is_none_or(|&nr| nr > without / 4) {
        assert!(with.len() < NR_ROUNDS_MAX, "{without} without a limit, {first}, then {with:?} with it");
        let before = proxy.nr_throttled();
        all_end_well(&begin(&*bucket, &info), NR);
        with.push(proxy.nr_throttled() - before);
    }
    println!(
        "refused of {NR} reads: {without} without a limit, {first} until it was found, {with:?} with it"
    );
    let figures = bucket.figures();
    assert_eq!((figures.throttles, figures.failures), (proxy.nr_throttled() as u64, 0));
    assert!(figures.throttled_ms > 0, "{figures:?}");
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_store_that_throttles_disturbs_no_other() {
    let (moto, proxy) = world();
    let (bucket, other) = (bucket_at(&proxy.endpoint(), "busy"), moto.bucket("busy"));
    let info = bucket.head("o").unwrap();
    proxy.throttle(PER_SECOND, AT_ONCE);
    let ended = begin(&*bucket, &info);
    all_end_well(&ended, AT_ONCE as usize + 1);
    all_end_well(&begin(&*other, &info), NR);
    assert_eq!((other.figures().throttled_ms, other.figures().throttles), (0, 0));
    all_end_well(&ended, NR - AT_ONCE as usize - 1);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_look_at_a_name_is_not_behind_all_reads() {
    let (_moto, proxy) = world();
    // Another volume of the store, which knows the limit, too.
    let (bucket, other) = (bucket_at(&proxy.endpoint(), "busy"), bucket_at(&proxy.endpoint(), "busy/p"));
    let info = bucket.head("o").unwrap();
    proxy.throttle(PER_SECOND, AT_ONCE);
    // Again while a look is refused, and made again after a pause in which reads end, or while a
    // busy machine lets it begin late. Behind all reads it would be so in no round.
    let mut nr_before = Vec::new();
    while nr_before.last().is_none_or(|&nr| nr > NR / 2) {
        assert!(nr_before.len() < NR_ROUNDS_MAX, "{nr_before:?} of {NR} reads ended before");
        let ended = begin(&*bucket, &info);
        all_end_well(&ended, AT_ONCE as usize + 1);
        bucket.head("o").unwrap();
        assert!(matches!(other.head("o"), Err(BucketError::NotFound(_))));
        let nr = AT_ONCE as usize + 1 + ended.try_iter().count();
        all_end_well(&ended, NR - nr);
        nr_before.push(nr);
    }
    assert!(other.figures().throttled_ms > 0, "its requests wait for the same store");
    let elsewhere = bucket_at(&proxy.endpoint(), "elsewhere");
    assert_eq!(bucket.source_id(), other.source_id());
    assert_ne!(bucket.source_id(), elsewhere.source_id());
}
