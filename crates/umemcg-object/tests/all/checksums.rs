//! Bytes that are not those of the object, where the store tells its sum.

use crate::servers::proxy::{Fault, Proxy};
use crate::servers::source::{Source, bytes_of};
use crate::servers::{Moto, SeaweedFs, Server, bucket_at};
use umemcg_vfs::bucket::{Bucket, BucketError, Expected, Metadata};

const LEN: usize = 300_000;

fn is_damaged(bucket: &dyn Bucket, key: &str) -> bool {
    match bytes_of(bucket, key) {
        Err(BucketError::Corrupt(text)) => text.contains("what came has"),
        read => panic!("{key}: {:?}", read.map(|bytes| bytes.len())),
    }
}

/// The claims that hold of every server, one of which keeps the sums of our uploads, too: moto does
/// only where a request names the algorithm in a header of its own, as Amazon's clients do.
fn holds(server: &dyn Server, keeps_ours: bool) {
    let _ = server.store("sums");
    let proxy = Proxy::before(&server.endpoint());
    let bucket = bucket_at(&proxy.endpoint(), "sums");
    let put = |key: &str, source: &Source| {
        bucket.upload(key, source, &Metadata::new(), &Expected::Absent).unwrap();
    };
    let (small, large) = (Source::pattern(LEN, 1), Source::pattern(9 << 20, 2));
    put("ours", &small);
    put("parts", &large);
    for algorithm in ["CRC32", "SHA1", "SHA256"] {
        let body = "bytes(range(256)) * 100";
        server.python(&format!(
            "client.put_object(Bucket='sums', Key='{algorithm}', Body={body}, ChecksumAlgorithm='{algorithm}')"
        ));
    }
    for key in ["CRC32", "SHA1", "SHA256"].into_iter().chain(keeps_ours.then_some("ours")) {
        let right = bytes_of(&*bucket, key).unwrap();
        proxy.fail_next(1, "GET", &Fault::DamagedBody);
        assert!(is_damaged(&*bucket, key), "{key}");
        assert!(bytes_of(&*bucket, key).unwrap() == right, "{key}");
    }
    assert!(bytes_of(&*bucket, "ours").unwrap() == small.bytes);
    // Of what comes in two pieces, too.
    proxy.fail_next(1, "GET", &Fault::CutBody);
    assert!(bytes_of(&*bucket, "ours").unwrap() == small.bytes);
    // A sum of sums is none of the bytes.
    assert!(bytes_of(&*bucket, "parts").unwrap() == large.bytes);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn what_moto_sends_damaged_is_told() {
    holds(&Moto::start(), false);
}

#[test]
#[ignore = "needs SeaweedFS (make test-object)"]
fn what_seaweedfs_sends_damaged_is_told() {
    holds(&SeaweedFs::start(), true);
}
