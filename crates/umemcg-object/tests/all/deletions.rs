//! Objects that are removed in the version that is known, and no other.

use crate::servers::proxy::{Fault, Proxy};
use crate::servers::source::{Source, bytes_of};
use crate::servers::{Moto, SeaweedFs, Server, bucket_at};
use umemcg_vfs::bucket::{Bucket, BucketError, Expected, Metadata, ObjectInfo};

fn put(bucket: &dyn Bucket, key: &str, bytes: &[u8]) -> ObjectInfo {
    bucket.upload(key, &Source::of(bytes), &Metadata::new(), &Expected::Anything).unwrap()
}

fn is_there(bucket: &dyn Bucket, key: &str) -> bool {
    match bucket.head(key) {
        Ok(_) => true,
        Err(BucketError::NotFound(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The claims that hold of every server that knows the condition.
fn holds(server: &dyn Server) {
    let _ = server.store("gone");
    let proxy = Proxy::before(&server.endpoint());
    let (bucket, other) = (bucket_at(&proxy.endpoint(), "gone"), server.bucket("gone"));
    let old = put(&*bucket, "o", b"old");
    let new = put(&*other, "o", b"another program's");
    let refused = bucket.delete_version("o", &old);
    assert!(matches!(refused, Err(BucketError::Changed(_))), "{refused:?}");
    assert_eq!(bytes_of(&*other, "o").unwrap(), b"another program's");
    bucket.delete_version("o", &new).unwrap();
    assert!(!is_there(&*other, "o"));
    bucket.delete_version("o", &new).unwrap();
    // In parts, and with another key.
    let source = Source::pattern(9 << 20, 1);
    let info = bucket.upload("ü n", &source, &Metadata::new(), &Expected::Absent).unwrap();
    bucket.delete_version("ü n", &info).unwrap();
    assert!(!is_there(&*other, "ü n"));
    for fault in [Fault::Status(503), Fault::AnswerLost] {
        let info = put(&*bucket, "o", b"bytes");
        proxy.fail_next(1, "DELETE", &fault);
        bucket.delete_version("o", &info).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(!is_there(&*other, "o"), "{fault:?}");
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn of_moto() {
    holds(&Moto::start());
}

#[test]
#[ignore = "needs SeaweedFS (make test-object)"]
fn of_seaweedfs() {
    holds(&SeaweedFs::start());
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_conflict_is_no_reason_to_drop_the_condition() {
    let moto = Moto::start();
    let _ = moto.store("gone");
    let proxy = Proxy::before(&moto.endpoint());
    let bucket = bucket_at(&proxy.endpoint(), "gone");
    let info = put(&*bucket, "o", b"bytes");
    proxy.fail_next(3, "DELETE", &Fault::Status(409));
    bucket.delete_version("o", &info).unwrap();
    assert!(!is_there(&*moto.bucket("gone"), "o"));
    assert_eq!(proxy.nr_seen("DELETE"), 4);
    let info = put(&*bucket, "o", b"bytes");
    proxy.fail_next(100, "DELETE", &Fault::Status(409));
    assert!(matches!(bucket.delete_version("o", &info), Err(BucketError::Changed(_))));
    assert!(is_there(&*bucket, "o"));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn the_name_of_a_file_switches_no_condition_off() {
    let moto = Moto::start();
    let _ = moto.store("gone");
    let proxy = Proxy::before(&moto.endpoint());
    let bucket = bucket_at(&proxy.endpoint(), "gone");
    let key = "status code: 405 Method Not Allowed";
    let info = put(&*bucket, key, b"bytes");
    proxy.fail_next(1, "DELETE", &Fault::Status(400));
    let refused = bucket.delete_version(key, &info);
    assert!(matches!(refused, Err(BucketError::Unavailable(_))), "{refused:?}");
    assert!(is_there(&*bucket, key));
    bucket.delete_version(key, &info).unwrap();
    assert!(!is_there(&*bucket, key));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_store_without_the_condition_is_asked_without_it() {
    let moto = Moto::start();
    let _ = moto.store("gone");
    let proxy = Proxy::before(&moto.endpoint());
    let bucket = bucket_at(&proxy.endpoint(), "gone");
    let is_conditional = || proxy.last_head().to_lowercase().contains("if-match");
    // One refusal may come from something else in the store's place.
    for (nr_refused, nr_asked) in [(1, 2), (2, 3), (0, 1)] {
        let info = put(&*bucket, "o", b"bytes");
        let nr_before = proxy.nr_seen("DELETE");
        proxy.fail_next(nr_refused, "DELETE", &Fault::Status(501));
        bucket.delete_version("o", &info).unwrap();
        assert_eq!(is_conditional(), nr_refused == 1, "{}", proxy.last_head());
        assert_eq!(proxy.nr_seen("DELETE") - nr_before, nr_asked);
        assert!(!is_there(&*bucket, "o"));
    }
}
