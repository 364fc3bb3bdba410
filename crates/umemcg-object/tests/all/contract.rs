//! What a volume expects of a bucket, of a store in memory, of a directory, and of real servers.
//!
//! The servers are found below `OBJECT_SERVERS`, a virtual environment that `make test-object`
//! makes.

use std::sync::Arc;

use crate::servers::{Azurite, FakeGcs, Moto, SeaweedFs, Server};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use umemcg_object::{ObjectOptions, StoreBucket, open};
use umemcg_vfs::bucket::{Bucket, BucketError, ListedName};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Stores an object under a key.
type Put<'a> = dyn Fn(&str, &[u8]) + 'a;

/// Another client of the same bucket.
struct Client<'a> {
    put: Box<Put<'a>>,
    delete: Box<dyn Fn(&str) + 'a>,
}

impl<'a> Client<'a> {
    fn of(store: &'a dyn ObjectStore) -> Self {
        let put = |key: &str, bytes: &[u8]| {
            block_on(store.put(&Path::parse(key).unwrap(), bytes.to_vec().into())).unwrap();
        };
        Self {
            put: Box::new(put),
            delete: Box::new(|key| block_on(store.delete(&Path::parse(key).unwrap())).unwrap()),
        }
    }
}

fn read(bucket: &dyn Bucket, key: &str, range: std::ops::Range<u64>) -> Result<Vec<u8>, BucketError> {
    let info = bucket.head(key)?;
    let mut bytes = Vec::new();
    bucket.read(key, &info, range, &mut |part| bytes.extend_from_slice(part)).map(|()| bytes)
}

fn names(listed: &[ListedName]) -> Vec<(&str, bool)> {
    listed.iter().map(|listed| (listed.name.as_str(), listed.object.is_some())).collect()
}

/// The claims that hold of every store. `bucket` shows what is below `p` of the client's.
fn holds(bucket: &dyn Bucket, Client { put, delete }: &Client<'_>, has_parts: bool) {
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    put("p/d/large", &large);
    for key in ["p/a", "p/d/e/f", "p/d-x", "p/d.txt", "p/ü n/x", "other/not-ours"] {
        put(key, key.as_bytes());
    }
    let whole = bucket.list("", None, 1000).unwrap();
    let expected = [("a", true), ("d-x", true), ("d.txt", true), ("d", false), ("ü n", false)];
    assert_eq!(names(&whole.names), expected, "in the order of the keys");
    assert_eq!((whole.hidden.len(), whole.next), (0, None));
    assert_eq!(names(&bucket.list("d/", None, 1000).unwrap().names), [("e", false), ("large", true)]);
    assert_eq!(names(&bucket.list("d/e", None, 1000).unwrap().names), [("e", false)]);
    assert!(bucket.list("nothing/", None, 1000).unwrap().names.is_empty());
    if has_parts {
        let (mut from, mut seen) = (None, Vec::new());
        loop {
            let part = bucket.list("", from.as_deref(), 2).unwrap();
            assert!(part.names.len() <= 2);
            seen.extend(part.names);
            from = part.next;
            if from.is_none() {
                break;
            }
        }
        // SeaweedFS orders its parts by names, not by keys.
        seen.sort_by_key(|listed| listed.name.clone() + if listed.object.is_none() { "/" } else { "" });
        assert_eq!(names(&seen), expected, "in parts the same");
    }

    let info = bucket.head("d/large").unwrap();
    assert_eq!(info.size, 3_000_000);
    let listed = bucket.list("d/", None, 1000).unwrap().names.pop().unwrap().object.unwrap();
    assert!(listed.is_same(&info), "{listed:?} {info:?}");
    assert!(matches!(bucket.head("d"), Err(BucketError::NotFound(_))), "a prefix is no object");
    assert!(matches!(bucket.head("nothing"), Err(BucketError::NotFound(_))));

    assert_eq!(read(bucket, "ü n/x", 0..8).unwrap(), "p/ü n/x".as_bytes());
    assert_eq!(read(bucket, "d/large", 0..3_000_000).unwrap(), large);
    assert_eq!(read(bucket, "d/large", 1_234_567..1_234_577).unwrap(), &large[1_234_567..1_234_577]);
    put("p/d/large", &large[1..]);
    let gone = bucket.read("d/large", &info, 0..10, &mut |_| {});
    assert!(matches!(gone, Err(BucketError::Changed(_))), "{gone:?}");
    delete("p/d/large");
    let gone = bucket.read("d/large", &info, 0..10, &mut |_| {});
    // Azure says that the condition does not hold.
    assert!(matches!(gone, Err(BucketError::NotFound(_) | BucketError::Changed(_))), "{gone:?}");

    // The longest key.
    let key = format!("l/{}/{}", ["n"; 4].map(|name| name.repeat(250)).join("/"), "n".repeat(16));
    assert_eq!(format!("p/{key}").len(), 1024);
    put(&format!("p/{key}"), b"long");
    assert_eq!(read(bucket, &key, 0..4).unwrap(), b"long");
}

#[test]
fn of_a_store_in_memory() {
    let store = InMemory::new();
    let bucket = StoreBucket::of_store(store.fork(), "memory://x/p", "p", 8 << 20).unwrap();
    drop(bucket);
    let store = Arc::new(store);
    let bucket = StoreBucket::of_store(Arc::clone(&store), "memory://x/p", "p", 8 << 20).unwrap();
    holds(&bucket, &Client::of(&*store), false);
}

#[test]
fn of_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("p")).unwrap();
    let url = format!("file://{}/p", directory.path().display());
    let bucket = open(&url, &ObjectOptions::default()).unwrap();
    let store = object_store::local::LocalFileSystem::new_with_prefix(directory.path()).unwrap();
    holds(&*bucket, &Client::of(&store), false);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn of_moto() {
    let server = Moto::start();
    of_server(&server);
    // What the library itself would refuse to list.
    server.put_odd("tests", &["odd/x//y", "odd/../z", "odd/ok", "odd/dir/", "odd/dir/in"]);
    let bucket = server.bucket("tests/odd");
    let part = bucket.list("", None, 1000).unwrap();
    assert_eq!(names(&part.names), [("dir", false), ("ok", true), ("x", false)]);
    assert_eq!(part.hidden, ["../"]);
    let part = bucket.list("x/", None, 1000).unwrap();
    assert_eq!((part.names.len(), part.hidden), (0, vec!["x//".to_owned()]));
    let part = bucket.list("dir/", None, 1000).unwrap();
    assert_eq!(names(&part.names), [("", true), ("in", true)], "a directory's own object has no name");
}

#[test]
#[ignore = "needs SeaweedFS (make test-object)"]
fn of_seaweedfs() {
    of_server(&SeaweedFs::start());
}

#[test]
#[ignore = "needs Azurite (make test-object)"]
fn of_azurite() {
    let server = Azurite::start();
    let store = server.store("tests");
    let bucket = server.bucket("tests/p");
    holds(&*bucket, &Client::of(&store), true);
    let figures = bucket.figures();
    assert!(figures.gets > 0 && figures.heads > 0 && figures.lists > 0, "{figures:?}");
    assert_eq!((figures.failures, bucket.trouble()), (0, None));

    let missing = server.bucket("no-such-container/p").list("", None, 1);
    assert!(matches!(missing, Err(BucketError::NotFound(_))), "{missing:?}");
}

#[test]
#[ignore = "needs fake-gcs-server (make test-object)"]
fn of_google() {
    let server = FakeGcs::start();
    server.make_bucket("tests");
    let bucket = server.bucket("tests/p");
    let client = Client {
        put: Box::new(|key, bytes| server.put("tests", key, bytes)),
        delete: Box::new(|key| server.delete("tests", key)),
    };
    // The emulator lists everything at once.
    holds(&*bucket, &client, false);
    let figures = bucket.figures();
    assert!(figures.gets > 0 && figures.heads > 0 && figures.lists > 0, "{figures:?}");
    assert_eq!((figures.failures, bucket.trouble()), (0, None));
}

fn of_server(server: &dyn Server) {
    let store = server.store("tests");
    let bucket = server.bucket("tests/p");
    holds(&*bucket, &Client::of(&store), true);
    let figures = bucket.figures();
    assert!(figures.gets > 0 && figures.heads > 0 && figures.lists > 0, "{figures:?}");
    assert_eq!((figures.failures, bucket.trouble()), (0, None));

    let missing = server.bucket("no-such-bucket/p").list("", None, 1);
    assert!(matches!(missing, Err(BucketError::NotFound(_))), "{missing:?}");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    // The port of a listener that is closed again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = Some(format!("http://127.0.0.1:{port}"));
    let options = ObjectOptions { endpoint, anonymous: true, region: Some("x".into()) };
    let bucket = open("s3://bucket", &options).unwrap();
    let Err(BucketError::Unavailable(text)) = bucket.list("", None, 1) else { panic!("it must fail") };
    assert!(text.contains("s3://bucket") && text.contains("refused"), "{text}");
    assert!(bucket.trouble().is_some() && bucket.figures().refusals > 0);
}
