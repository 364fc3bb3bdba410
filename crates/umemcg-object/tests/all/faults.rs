//! A bucket whose store is slow, refuses, cuts answers or sends something else.

use std::sync::mpsc;
use std::time::Duration;

use crate::servers::proxy::{Fault, Proxy};
use crate::servers::{Moto, Server, bucket_at};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use umemcg_vfs::bucket::{Bucket, BucketError, ObjectBody};

const LEN: usize = 600_000;

fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at / 3) as u8).collect()
}

/// A server with an object `o` of [`LEN`] bytes, and a proxy before it.
fn world() -> (Moto, Proxy) {
    let moto = Moto::start();
    let store = moto.store("faults");
    let put = async { store.put(&Path::from("o"), pattern().into()).await };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(put).unwrap();
    let proxy = Proxy::before(&moto.endpoint());
    (moto, proxy)
}

fn read(bucket: &dyn Bucket) -> Result<Vec<u8>, BucketError> {
    let info = bucket.head("o")?;
    let mut bytes = Vec::new();
    bucket.read("o", &info, 0..LEN as u64, &mut |part| bytes.extend_from_slice(part)).map(|()| bytes)
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn what_a_store_refuses_for_a_moment_is_asked_again() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    for status in [503, 429, 500] {
        proxy.fail_next(2, "GET", &Fault::Status(status));
        proxy.fail_next(1, "HEAD", &Fault::Status(status));
        let before = bucket.figures();
        assert!(read(&*bucket).unwrap() == pattern(), "{status}");
        let after = bucket.figures();
        assert_eq!((after.refusals - before.refusals, after.failures), (3, 0), "{status}");
        assert_eq!(bucket.trouble(), None, "it has answered since");
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn what_comes_in_part_is_asked_for_again() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    proxy.fail_next(2, "GET", &Fault::CutBody);
    assert!(read(&*bucket).unwrap() == pattern());
    assert_eq!(proxy.nr_seen("GET"), 3);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_server_that_starts_again_is_waited_for() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    proxy.fail_next(12, "HEAD", &Fault::Status(503));
    bucket.head("o").unwrap();
    // One that never answered is a wrong address.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nowhere = bucket_at(&format!("http://127.0.0.1:{port}"), "faults");
    assert!(matches!(nowhere.head("o"), Err(BucketError::Unavailable(_))));
    assert_eq!(nowhere.figures().heads, 1, "told at once");
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn another_object_than_was_asked_for_is_none() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    proxy.fail_next(1, "GET", &Fault::OtherEtag);
    let result = read(&*bucket);
    assert!(matches!(result, Err(BucketError::Changed(_))), "{result:?}");
    assert!(read(&*bucket).unwrap() == pattern());
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn an_answer_that_is_too_long_is_refused() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    proxy.fail_next(1, "GET", &Fault::LongBody(100_000));
    let listed = bucket.list("", None, 1000);
    let Err(BucketError::Unavailable(text)) = listed else { panic!("it must be refused") };
    assert!(text.contains("longer than"), "{text}");
    proxy.fail_next(1, "GET", &Fault::LongBody(3));
    assert!(read(&*bucket).is_err());
    assert!(read(&*bucket).unwrap() == pattern());
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn wrong_credentials_are_told_and_do_not_last() {
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    proxy.fail_always(Some(Fault::Status(403)));
    let Err(BucketError::Denied(text)) = bucket.head("o") else { panic!("it must be refused") };
    assert!(text.contains("s3://faults") && text.contains("\"o\""), "{text}");
    assert!(bucket.trouble().unwrap().contains("403"));
    assert_eq!(proxy.nr_seen("HEAD"), 1, "asking again would not help");
    assert!(matches!(bucket.list("", None, 1), Err(BucketError::Denied(_))), "of a listing, too");
    proxy.fail_always(None);
    assert!(read(&*bucket).unwrap() == pattern());
    assert_eq!(bucket.trouble(), None);
}

/// Tells how many bytes came.
#[derive(Debug)]
struct Counter(usize, mpsc::Sender<(usize, Result<(), BucketError>)>);

impl ObjectBody for Counter {
    fn take(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
    fn end(self: Box<Self>, result: Result<(), BucketError>) {
        self.1.send((self.0, result)).unwrap();
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_slow_store_holds_no_thread_for_each_request() {
    const NR: usize = 60;
    let (_moto, proxy) = world();
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    let info = bucket.head("o").unwrap();
    proxy.fail_always(Some(Fault::Delay(Duration::from_secs(2))));
    let ours = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("umemcg-object")).count()
    };
    let (sender, ended) = mpsc::channel();
    for nr in 0..NR as u64 {
        let body = Box::new(Counter(0, sender.clone()));
        bucket.begin_read("o", &info, nr * 1000..(nr + 1) * 1000, body);
    }
    let results: Vec<_> = (0..NR).map(|_| ended.recv().unwrap()).collect();
    assert!(results.iter().all(|(len, result)| *len == 1000 && result.is_ok()), "{results:?}");
    assert_eq!(ours(), 2, "the threads that move bytes");
    assert!(proxy.most_under_way() > 10, "{} at a time", proxy.most_under_way());
}
