//! A bucket whose store refuses, cuts and loses what is written to it.

use std::sync::Arc;
use std::time::Duration;

use crate::servers::proxy::{Fault, Proxy};
use crate::servers::source::{Source, bytes_of};
use crate::servers::{Moto, SeaweedFs, Server, bucket_at};
use crate::write_contract::without_headers;
use umemcg_vfs::bucket::{Bucket, BucketError, Expected, Metadata, ObjectInfo, UPLOAD_MARK};

const PART: usize = 8 << 20;

struct World {
    moto: Moto,
    proxy: Proxy,
    /// Through the proxy.
    bucket: Arc<dyn Bucket>,
    /// Another writer, beside the proxy.
    other: Arc<dyn Bucket>,
}

fn world() -> World {
    let moto = Moto::start();
    let _ = moto.store("faults");
    let proxy = Proxy::before(&moto.endpoint());
    let (bucket, other) = (bucket_at(&proxy.endpoint(), "faults"), moto.bucket("faults"));
    World { moto, proxy, bucket, other }
}

fn put(bucket: &dyn Bucket, bytes: &[u8], expected: &Expected) -> Result<ObjectInfo, BucketError> {
    bucket.upload("o", &Source::of(bytes), &Metadata::new(), expected)
}

impl World {
    fn put(&self, bytes: &[u8], expected: &Expected) -> Result<ObjectInfo, BucketError> {
        put(&*self.bucket, bytes, expected)
    }

    fn upload(&self, source: &Source, expected: &Expected) -> Result<ObjectInfo, BucketError> {
        self.bucket.upload("o", source, &Metadata::new(), expected)
    }

    fn is(&self, bytes: &[u8]) -> bool {
        bytes_of(&*self.other, "o").unwrap() == bytes
    }

    fn is_absent(&self) -> bool {
        matches!(self.other.head("o"), Err(BucketError::NotFound(_)))
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_redirection_is_no_answer() {
    let w = world();
    let elsewhere = Proxy::before(&w.moto.endpoint());
    for status in [301, 302, 303, 307, 308] {
        let fault = Fault::Redirect(status, format!("{}/faults/o", elsewhere.endpoint()));
        w.proxy.fail_next(1, "PUT", &fault);
        let stored = w.put(b"bytes", &Expected::Absent);
        assert!(matches!(stored, Err(BucketError::Unavailable(_))), "{status}: {stored:?}");
    }
    assert_eq!((elsewhere.nr_seen("PUT"), elsewhere.nr_seen("GET")), (0, 0));
    assert!(w.is_absent());
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn what_a_store_does_not_take_at_first_is_sent_again() {
    let w = world();
    let mut info = w.put(b"0", &Expected::Absent).unwrap();
    for (nr, fault) in [
        Fault::Status(503),
        Fault::Status(429),
        Fault::Status(500),
        Fault::CutRequest,
        // The condition holds: this is no lost race.
        Fault::Status(412),
        Fault::Status(409),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = vec![nr as u8 + b'a'; 3_000_000];
        let before = w.proxy.nr_seen("PUT");
        w.proxy.fail_next(2, "PUT", &fault);
        info = w.put(&bytes, &Expected::Same(info)).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(w.proxy.nr_seen("PUT") - before, 3, "{fault:?}");
        assert!(w.is(&bytes), "{fault:?}");
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn an_upload_knows_its_object_when_the_answer_was_lost() {
    let w = world();
    w.proxy.fail_next(1, "PUT", &Fault::AnswerLost);
    let first = w.put(b"first", &Expected::Absent).unwrap();
    assert!(w.bucket.head("o").unwrap().is_same(&first));
    w.proxy.fail_next(2, "PUT", &Fault::AnswerLost);
    let second = w.put(b"second", &Expected::Same(first)).unwrap();
    assert!(w.is(b"second") && w.bucket.head("o").unwrap().is_same(&second));
    w.proxy.fail_next(1, "PUT", &Fault::AnswerLost);
    w.put(b"third", &Expected::Anything).unwrap();
    assert!(w.is(b"third"));
    assert_eq!(w.bucket.figures().failures, 0);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn an_upload_is_known_again_by_its_mark() {
    let w = world();
    let marked = |mark: &str| vec![(UPLOAD_MARK.to_owned(), mark.to_owned())];
    let upload = |mark| w.bucket.upload("o", &Source::of(*b"o"), &marked(mark), &Expected::Absent);
    // The answer to the PUT is lost, and the store is away when it is asked what is there.
    w.proxy.fail_next(1, "PUT", &Fault::AnswerLost);
    w.proxy.fail_next(1, "PUT", &Fault::Status(412));
    w.proxy.fail_next(1, "HEAD", &Fault::Status(403));
    let unknown = upload("1");
    assert!(matches!(unknown, Err(BucketError::Unavailable(_))), "{unknown:?}");
    let lost = upload("2");
    assert!(matches!(lost, Err(BucketError::Changed(_))), "{lost:?}");
    assert!(w.other.head("o").unwrap().is_same(&upload("1").unwrap()));
    let source = Source::pattern(PART + 1, 0);
    let upload = |mark| w.bucket.upload("large", &source, &marked(mark), &Expected::Absent);
    let large = upload("3").unwrap();
    assert!(upload("3").unwrap().is_same(&large));
    let lost = upload("4");
    assert!(matches!(lost, Err(BucketError::Changed(_))), "{lost:?}");
    assert_eq!((w.moto.nr_uploads("faults"), source.open_upload()), (0, None));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn replaced_metadata_are_known_when_the_answer_was_lost() {
    let w = world();
    let mut info = w.put(b"bytes", &Expected::Absent).unwrap();
    let of = |nr: usize| vec![("mode".to_owned(), nr.to_string())];
    for (nr, (nr_faults, fault)) in
        [(1, Fault::AnswerLost), (1, Fault::Status(503)), (1, Fault::CutRequest), (2, Fault::AnswerLost)]
            .into_iter()
            .enumerate()
    {
        w.proxy.fail_next(nr_faults, "PUT", &fault);
        info = w.bucket.replace_metadata("o", &info, &of(nr)).unwrap();
        assert!(info.metadata.as_ref().unwrap().contains(&of(nr)[0]), "{fault:?}");
        assert!(w.is(b"bytes"));
    }
    // How its bytes are to be read stays.
    let typed = "ContentType='text/x-test', CacheControl='no-store', ContentEncoding='x'";
    w.moto.python(&format!("client.put_object(Bucket='faults', Key='typed', Body=b't', {typed})"));
    let typed = w.bucket.head("typed").unwrap();
    w.bucket.replace_metadata("typed", &typed, &of(1)).unwrap();
    let shown = w.moto.python(
        "h = client.head_object(Bucket='faults', Key='typed')\n\
         print(h['ContentType'], h['CacheControl'], h['ContentEncoding'], h['Metadata']['mode'])",
    );
    assert_eq!(shown.trim(), "text/x-test no-store x 1");
    // Another program is there first.
    let theirs = put(&*w.other, b"theirs", &Expected::Anything).unwrap();
    let late = w.bucket.replace_metadata("o", &info, &of(9));
    assert!(matches!(late, Err(BucketError::Changed(_))), "{late:?}");
    assert_eq!(without_headers(&w.other.head("o").unwrap()), without_headers(&theirs));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_race_is_lost_even_to_the_same_bytes() {
    let w = world();
    // Which are stored before ours get there.
    put(&*w.other, b"same", &Expected::Absent).unwrap();
    let lost = w.put(b"same", &Expected::Absent);
    let Err(BucketError::Changed(text)) = lost else { panic!("{lost:?}") };
    assert!(text.contains("s3://faults") && text.contains("\"o\""), "{text}");

    let info = w.other.head("o").unwrap();
    put(&*w.other, b"theirs", &Expected::Anything).unwrap();
    w.proxy.fail_next(1, "PUT", &Fault::CutRequest);
    let lost = w.put(b"ours", &Expected::Same(info));
    assert!(matches!(lost, Err(BucketError::Changed(_))), "{lost:?}");
    assert!(w.is(b"theirs"));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn what_cannot_be_known_is_not_called_a_lost_race() {
    let w = world();
    w.proxy.fail_next(1, "PUT", &Fault::Status(412));
    w.proxy.fail_next(1, "HEAD", &Fault::Status(403));
    let unknown = w.put(b"o", &Expected::Absent);
    assert!(matches!(unknown, Err(BucketError::Unavailable(_))), "{unknown:?}");
    w.proxy.fail_next(1, "PUT", &Fault::Status(403));
    let denied = w.put(b"o", &Expected::Absent);
    assert!(matches!(denied, Err(BucketError::Denied(_))), "{denied:?}");
    for status in [400, 501] {
        let before = w.proxy.nr_seen("PUT");
        w.proxy.fail_next(1, "PUT", &Fault::Status(status));
        let refused = w.put(b"o", &Expected::Absent);
        assert!(matches!(refused, Err(BucketError::Unavailable(_))), "{refused:?}");
        assert_eq!(w.proxy.nr_seen("PUT") - before, 1, "asking again would not help");
    }
    assert!(w.is_absent());
    w.put(b"o", &Expected::Absent).unwrap();
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn an_upload_needs_a_request_for_each_part_and_two_more() {
    let w = world();
    let source = Source::pattern(8 * PART, 0);
    w.proxy.fail_always(Some(Fault::Delay(Duration::from_millis(100))));
    w.upload(&source, &Expected::Absent).unwrap();
    assert_eq!((w.proxy.nr_seen("PUT"), w.proxy.nr_seen("POST")), (8, 2));
    assert_eq!(w.proxy.most_under_way(), 2, "parts at a time");
    let figures = w.bucket.figures();
    assert_eq!((figures.puts, figures.written_bytes), (10, 8 * PART as u64));
    assert!(figures.heads <= 1 && figures.gets == 0, "{figures:?}");
    w.proxy.fail_always(None);
    assert!(w.is(&source.bytes));
    w.put(b"small", &Expected::Anything).unwrap();
    assert_eq!((w.proxy.nr_seen("PUT"), w.bucket.figures().puts), (9, 11));
}

#[test]
#[ignore = "needs SeaweedFS (make test-object)"]
fn what_is_damaged_on_its_way_is_sent_again() {
    let server = SeaweedFs::start();
    let _ = server.store("faults");
    let proxy = Proxy::before(&server.endpoint());
    let bucket = bucket_at(&proxy.endpoint(), "faults");
    proxy.fail_next(2, "PUT", &Fault::DamagedRequest);
    put(&*bucket, b"checked", &Expected::Absent).unwrap();
    assert_eq!(proxy.nr_seen("PUT"), 3);
    // The store keeps this one; it is that of sha256sum.
    let sum = "x-amz-checksum-sha256: 5ho9eMZRM8cmDEPnGdl8RuFr1Qxk7ngAU2zxTGQHphc=";
    assert!(proxy.last_head().contains(sum), "{}", proxy.last_head());
    assert_eq!(bytes_of(&*bucket, "o").unwrap(), b"checked");
    let source = Source::pattern(PART + 1, 0);
    proxy.fail_next(1, "PUT", &Fault::DamagedRequest);
    bucket.upload("o", &source, &Metadata::new(), &Expected::Anything).unwrap();
    assert!(bytes_of(&*bucket, "o").unwrap() == source.bytes);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_part_is_sent_again_or_ends_the_upload() {
    let w = world();
    let source = Source::pattern(2 * PART + 1, 0);
    for fault in [Fault::Status(503), Fault::CutRequest, Fault::AnswerLost] {
        w.proxy.fail_next(2, "PUT", &fault);
        w.upload(&source, &Expected::Anything).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(w.is(&source.bytes), "{fault:?}");
    }
    w.other.delete("o").unwrap();
    for (fault, nr) in [(Fault::Status(403), 1), (Fault::Status(404), 1)] {
        let source = Source::pattern(2 * PART + 1, 0);
        w.proxy.fail_next(nr, "PUT", &fault);
        let refused = w.upload(&source, &Expected::Absent);
        assert!(matches!(refused, Err(BucketError::Denied(_) | BucketError::Unavailable(_))), "{refused:?}");
        assert_eq!(source.notes(), [true, true, false]);
        assert_eq!(w.moto.nr_uploads("faults"), 0);
        assert!(w.is_absent());
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn an_upload_that_was_begun_twice_is_one() {
    let w = world();
    let source = Source::pattern(PART + 1, 0);
    w.proxy.fail_next(2, "POST", &Fault::AnswerLost);
    w.upload(&source, &Expected::Absent).unwrap();
    assert_eq!((w.proxy.nr_seen("POST"), w.moto.nr_uploads("faults")), (4, 0));
    assert!(w.is(&source.bytes));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn the_end_of_an_upload_is_judged_by_what_is_there() {
    let w = world();
    let source = Source::pattern(PART + 1, 0);
    let lost = Fault::AnswerLost;
    for (faults, is_stored) in [
        (vec![Fault::Status(503)], true),
        (vec![lost.clone()], true),
        (vec![lost, Fault::Status(403)], true),
        (vec![Fault::Belated("InternalError")], true),
        (vec![Fault::Belated("AccessDenied")], false),
        (vec![Fault::Status(400)], false),
        (vec![Fault::Status(404)], false),
        (vec![Fault::Status(412)], false),
    ] {
        let _ = w.other.delete("o");
        w.proxy.fail_next(1, "POST", &Fault::Pass);
        faults.iter().for_each(|fault| w.proxy.fail_next(1, "POST", fault));
        let ended = w.upload(&source, &Expected::Absent);
        assert_eq!(w.moto.nr_uploads("faults"), 0, "{faults:?}");
        if is_stored {
            assert!(w.other.head("o").unwrap().is_same(&ended.unwrap()), "{faults:?}");
        } else {
            assert!(w.is_absent(), "{faults:?}");
            let error = ended.unwrap_err();
            assert!(
                matches!(error, BucketError::Denied(_) | BucketError::Unavailable(_)),
                "{faults:?} {error:?}"
            );
        }
        assert_eq!(source.open_upload(), None, "{faults:?}");
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn a_race_is_lost_at_the_end_of_an_upload_too() {
    let w = world();
    let info = w.put(b"old", &Expected::Absent).unwrap();
    let other = Arc::clone(&w.other);
    let source = Source::pattern(PART + 1, 0).calling(PART as u64, move || {
        put(&*other, b"theirs", &Expected::Anything).map(drop).map_err(std::io::Error::other)
    });
    for expected in [Expected::Same(info), Expected::Absent] {
        let lost = w.upload(&source, &expected);
        assert!(matches!(lost, Err(BucketError::Changed(_))), "{lost:?}");
        assert!(w.is(b"theirs"));
        assert_eq!((w.moto.nr_uploads("faults"), source.open_upload()), (0, None));
    }
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn an_upload_that_cannot_be_given_up_stays_noted() {
    let w = world();
    let source = Source::pattern(PART + 1, 0);
    w.proxy.fail_next(1, "PUT", &Fault::Status(403));
    w.proxy.fail_next(1, "DELETE", &Fault::Status(403));
    assert!(w.upload(&source, &Expected::Absent).is_err());
    assert_eq!(source.notes(), [true, true]);
    w.bucket.abort_upload("o", &source.open_upload().unwrap()).unwrap();
    assert_eq!(w.moto.nr_uploads("faults"), 0);
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn what_is_removed_or_copied_twice_is_done_once() {
    let w = world();
    let info = w.put(b"o", &Expected::Absent).unwrap();
    for fault in [Fault::AnswerLost, Fault::CutRequest, Fault::Status(503)] {
        w.proxy.fail_next(1, "PUT", &fault);
        let copy = w.bucket.copy("o", &info, "copy", &Expected::Absent);
        assert!(w.other.head("copy").unwrap().is_same(&copy.unwrap()), "{fault:?}");
        w.proxy.fail_next(1, "DELETE", &fault);
        w.bucket.delete("copy").unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(matches!(w.other.head("copy"), Err(BucketError::NotFound(_))), "{fault:?}");
    }
    w.proxy.fail_next(1, "PUT", &Fault::Belated("AccessDenied"));
    let denied = w.bucket.copy("o", &info, "copy", &Expected::Absent);
    assert!(matches!(denied, Err(BucketError::Denied(_))), "{denied:?}");
    assert_eq!(w.bucket.figures().copies, 7);
}
