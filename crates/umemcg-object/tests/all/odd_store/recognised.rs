//! Each kind of request, with answers that contradict their status: no absent object is believed,
//! no existing one is given up.

use std::sync::Arc;

use umemcg_vfs::bucket::{
    Bucket, BucketError, Expected, Metadata, ObjectInfo, PartedUpload, UNKNOWN_UPLOAD, UNREADABLE, UploadNote,
};

use super::http::Form;
use super::s3::PAGE;
use super::{Asked, Character, Etags, FORMS, INSTEAD, Instead, Listing, OddStore, Oddity};
use crate::servers::source::Source;

#[derive(Debug)]
struct NoNote;

impl UploadNote for NoNote {
    fn note(&self, _: Option<&str>) -> std::io::Result<()> {
        Ok(())
    }
}

fn world() -> (OddStore, Arc<dyn Bucket>) {
    let store = OddStore::start();
    store.state(|state| {
        state.put("p/o", b"old bytes", &[]);
        state.put("p/d/", b"", &[]);
        (0..5).for_each(|nr| state.put(&format!("p/d/{nr}"), b"x", &[]));
    });
    let bucket = store.bucket();
    (store, bucket)
}

fn begin(bucket: &dyn Bucket) -> Arc<dyn PartedUpload> {
    bucket.begin_upload("o", &Metadata::new(), &Expected::Anything, Arc::new(NoNote)).unwrap()
}

fn put(bucket: &dyn Bucket, bytes: &[u8], expected: &Expected) -> Result<ObjectInfo, BucketError> {
    bucket.upload("o", &Source::of(bytes), &Metadata::new(), expected)
}

fn stored(store: &OddStore, key: &str) -> Option<Vec<u8>> {
    store.state(|state| state.objects.get(key).map(|object| object.bytes.clone()))
}

/// Returns the names of a directory in parts of two.
fn names(bucket: &dyn Bucket) -> Result<Vec<String>, BucketError> {
    let (mut names, mut from) = (Vec::new(), None);
    for _ in 0..20 {
        let part = bucket.list("d/", from.as_deref(), 2)?;
        // The directory's own object has no name.
        names.extend(part.names.into_iter().map(|listed| listed.name).filter(|name| !name.is_empty()));
        match part.next {
            Some(next) => from = Some(next),
            None => return Ok(names),
        }
    }
    panic!("a listing of five names has no end");
}

#[test]
fn what_is_no_listing_is_no_empty_directory() {
    let (store, bucket) = world();
    for instead in INSTEAD {
        store.always(Asked::List, Oddity::Instead(instead));
        let listed = names(&*bucket);
        assert!(listed.is_err(), "{instead:?}: {listed:?}");
        store.be_right();
    }
    store.always(Asked::List, Oddity::Listing(Listing::NoToken));
    assert!(names(&*bucket).is_err(), "its end is not its end");
    store.be_right();
    store.always(Asked::List, Oddity::Listing(Listing::AnyPrefix));
    assert!(names(&*bucket).is_err(), "of another directory");
    assert!(bucket.find("gone").is_err(), "what it lacks is not absent");
    store.be_right();
    for listing in [Listing::OldToken, Listing::NoEtags, Listing::EmptyFirst] {
        store.always(Asked::List, Oddity::Listing(listing));
        match names(&*bucket) {
            Ok(names) => assert_eq!(names, ["0", "1", "2", "3", "4"], "{listing:?}"),
            Err(error) => assert_eq!(listing, Listing::OldToken, "{error}"),
        }
        store.be_right();
    }
}

#[test]
fn a_success_that_did_nothing_is_none() {
    let (store, bucket) = world();
    for instead in INSTEAD {
        let odd = Oddity::Instead(instead);
        for (asked, what) in [(Asked::Put, "new"), (Asked::Head, "newer")] {
            let info = bucket.head("o").unwrap();
            store.next(1, asked, odd);
            let done = put(&*bucket, what.as_bytes(), &Expected::Same(info));
            let there = stored(&store, "p/o").unwrap();
            assert!(done.is_err() || there == what.as_bytes(), "{instead:?}, {asked:?}: {done:?}");
            store.be_right();
            put(&*bucket, b"calm", &Expected::Anything).unwrap();
        }
        let info = bucket.head("o").unwrap();
        store.next(1, Asked::Copy, odd);
        let copied = bucket.copy("o", &info, "copy", &Expected::Anything);
        let there = stored(&store, "p/copy");
        assert!(copied.is_err() || there.as_deref() == Some(b"calm"), "{instead:?}: {copied:?}");
        store.be_right();
        bucket.copy("o", &info, "copy", &Expected::Anything).unwrap();
        let copy = bucket.head("copy").unwrap();
        store.next(1, Asked::Delete, odd);
        let deleted = bucket.delete_version("copy", &copy);
        let is_there = stored(&store, "p/copy").is_some();
        assert!(deleted.is_err() || !is_there, "{instead:?}: {deleted:?}");
        store.be_right();
        bucket.delete("copy").unwrap();
    }
}

#[test]
fn uploads_that_a_crash_left_behind_are_found_in_their_list() {
    let (store, bucket) = world();
    store.set_character(Character { page: 2, ..Character::default() });
    (0..5).for_each(|_| std::mem::forget(begin(&*bucket)));
    assert_eq!(store.state(|state| state.nr_uploads_open()), 5);
    bucket.abort_upload("o", UNKNOWN_UPLOAD).unwrap();
    assert_eq!(store.state(|state| state.nr_uploads_open()), 0);
}

#[test]
fn a_status_of_not_found_alone_ends_no_upload() {
    let (store, bucket) = world();
    let upload = begin(&*bucket);
    let abort_behind_404 = || {
        store.next(1, Asked::Delete, Oddity::Status(404));
        bucket.abort_upload("o", "u1")
    };
    let aborted = abort_behind_404();
    assert!(matches!(aborted, Err(BucketError::Unavailable(_))), "{aborted:?}");
    store.next(1, Asked::Delete, Oddity::Status(404));
    let aborted = upload.abort();
    assert!(matches!(aborted, Err(BucketError::Unavailable(_))), "{aborted:?}");
    assert_eq!(store.state(|state| state.nr_uploads_open()), 1);
    bucket.abort_upload("o", "u1").unwrap();
    bucket.abort_upload("o", "u1").unwrap();
    // No list has it.
    abort_behind_404().unwrap();
}

#[test]
fn metadata_that_cannot_be_read_are_told() {
    let (store, bucket) = world();
    store.state(|state| state.put("p/o", b"x", &[("title", "Übersicht"), ("mode", "33188")]));
    let found = bucket.head("o").unwrap();
    let metadata = found.metadata.unwrap();
    assert!(metadata.iter().any(|(name, _)| name == UNREADABLE), "{metadata:?}");
    assert!(metadata.iter().any(|(name, _)| name == "mode"), "{metadata:?}");
}

#[test]
fn a_deletion_without_a_condition_fails_no_condition() {
    let (store, bucket) = world();
    for status in [409, 412] {
        store.next(2, Asked::Delete, Oddity::Status(status));
        bucket.delete("o").unwrap();
        assert_eq!(stored(&store, "p/o"), None, "{status}");
        store.state(|state| state.put("p/o", b"old bytes", &[]));
    }
    store.always(Asked::Delete, Oddity::Status(412));
    let refused = bucket.delete("o");
    assert!(matches!(refused, Err(BucketError::Unavailable(_))), "{refused:?}");
}

#[test]
fn a_status_of_not_found_alone_is_no_absence() {
    let (store, bucket) = world();
    let info = bucket.head("o").unwrap();
    for status in [404, 403] {
        store.always(Asked::Head, Oddity::Status(status));
        store.next(1, Asked::Put, Oddity::Status(412));
        let done = put(&*bucket, b"new", &Expected::Same(info.clone()));
        assert!(!matches!(done, Err(BucketError::Changed(_))), "{status}: {done:?}");
        store.next(1, Asked::Delete, Oddity::Status(404));
        let deleted = bucket.delete_version("o", &info);
        assert!(deleted.is_err(), "{status}");
        for key in ["o", "d/"] {
            assert!(bucket.find(key).is_err(), "{status} {key}");
        }
        let copied = bucket.copy("o", &info, "copy", &Expected::Anything);
        assert!(!matches!(copied, Err(BucketError::NotFound(_))), "{status}: {copied:?}");
        store.be_right();
        assert!(stored(&store, "p/o").is_some(), "{status}");
    }
}

#[test]
fn a_page_with_an_etag_is_no_other_version() {
    let (store, bucket) = world();
    let info = bucket.head("o").unwrap();
    for hides_listings in [true, false] {
        store.be_behind_a_page(hides_listings);
        for (key, expected) in [("o", Expected::Same(info.clone())), ("new", Expected::Absent)] {
            let done = bucket.upload(key, &Source::of(b"new"), &Metadata::new(), &expected);
            assert!(matches!(done, Err(BucketError::Unavailable(_))), "{key}, {hides_listings}: {done:?}");
            let found = bucket.find_confirmed(key);
            assert!(matches!(found, Err(BucketError::Unavailable(_))), "{key}, {hides_listings}: {found:?}");
        }
        let copied = bucket.copy("o", &info, "copy", &Expected::Anything);
        assert!(matches!(copied, Err(BucketError::Unavailable(_))), "{hides_listings}: {copied:?}");
        store.be_right();
    }
    assert_eq!(bucket.find_confirmed("o").unwrap(), Some(info));
}

#[test]
fn a_page_without_a_time_is_no_object() {
    let (store, bucket) = world();
    let info = bucket.head("o").unwrap();
    store.next(1, Asked::Head, Oddity::Instead(Instead::PageWithEtag));
    assert_eq!(bucket.head("o").unwrap(), info, "the store is asked again");
}

#[test]
fn a_page_in_place_of_the_bytes_is_no_other_version() {
    let (store, bucket) = world();
    let info = bucket.head("o").unwrap();
    let read = || bucket.read("o", &info, 0..info.size, &mut |_| {});
    for page in [Instead::PageWithEtag, Instead::DatedPage] {
        store.next(1, Asked::Get, Oddity::Instead(page));
        let failed = read();
        assert!(matches!(failed, Err(BucketError::Unavailable(_))), "{page:?}: {failed:?}");
        read().unwrap();
    }
}

#[test]
fn a_deletion_without_its_status_is_looked_for() {
    let (store, bucket) = world();
    for silent in [Instead::Nothing, Instead::Accepted] {
        let info = bucket.head("o").unwrap();
        store.next(2, Asked::Delete, Oddity::Instead(silent));
        for deleted in [bucket.delete_version("o", &info), bucket.delete("o")] {
            assert!(matches!(deleted, Err(BucketError::Unavailable(_))), "{silent:?}: {deleted:?}");
        }
        assert!(stored(&store, "p/o").is_some());
        // No listing has it.
        store.next(1, Asked::Delete, Oddity::Instead(silent));
        bucket.delete("gone").unwrap();
    }
}

#[test]
fn a_page_in_place_of_the_store_ends_no_condition() {
    let (store, bucket) = world();
    let info = bucket.head("o").unwrap();
    store.be_behind_a_page(true);
    let deleted = bucket.delete_version("o", &info);
    assert!(matches!(deleted, Err(BucketError::Unavailable(_))), "{deleted:?}");
    store.be_right();
    store.state(|state| state.put("p/o", b"another version", &[]));
    let deleted = bucket.delete_version("o", &info);
    assert!(matches!(deleted, Err(BucketError::Changed(_))), "{deleted:?}");
    assert_eq!(stored(&store, "p/o").unwrap(), b"another version");
}

#[test]
fn a_page_with_an_etag_is_no_copy() {
    let (store, bucket) = world();
    // As long as the page, and without a mark.
    store.state(|state| state.put("p/o", &[b'o'; PAGE.len()], &[]));
    let info = bucket.head("o").unwrap();
    for before in [None, Some([b'x'; PAGE.len()])] {
        store.state(|state| before.iter().for_each(|before| state.put("p/copy", before, &[])));
        store.next(1, Asked::Copy, Oddity::Instead(Instead::Accepted));
        // The first HEAD finds the destination as it is.
        store.next(1, Asked::Head, Oddity::Form(Form::Plain));
        store.next(1, Asked::Head, Oddity::Instead(Instead::DatedPage));
        let copied = bucket.copy("o", &info, "copy", &Expected::Anything);
        assert!(matches!(copied, Err(BucketError::Unavailable(_))), "{before:?}: {copied:?}");
        store.be_right();
    }
    bucket.copy("o", &info, "copy", &Expected::Anything).unwrap();
    assert_eq!(stored(&store, "p/copy"), stored(&store, "p/o"));
}

#[test]
fn any_form_of_an_answer_brings_the_bytes_or_an_error() {
    let (store, bucket) = world();
    let info = bucket.head("o").unwrap();
    for form in FORMS {
        for asked in [Asked::Get, Asked::List, Asked::Head, Asked::Put] {
            store.next(1, asked, Oddity::Form(form));
        }
        store.next(1, Asked::Get, Oddity::WholeObject);
        let mut bytes = Vec::new();
        let read = bucket.read("o", &info, 4..9, &mut |part| bytes.extend_from_slice(part));
        assert!(read.is_err() || bytes == b"bytes", "{form:?}: {read:?} {bytes:?}");
        let listed = names(&*bucket);
        assert!(
            listed.as_ref().is_ok_and(|names| names.len() == 5) || listed.is_err(),
            "{form:?}: {listed:?}"
        );
        let done = bucket.upload("form", &Source::of(b"sent"), &Metadata::new(), &Expected::Anything);
        assert!(done.is_err() || stored(&store, "p/form").unwrap() == b"sent", "{form:?}: {done:?}");
        store.be_right();
    }
}

#[test]
fn versions_are_told_apart_without_etags() {
    let (store, bucket) = world();
    for etags in [Etags::Empty, Etags::Missing, Etags::Weak, Etags::Const] {
        store.set_character(Character { etags, ..Character::default() });
        let info = put(&*bucket, b"one", &Expected::Anything).unwrap();
        store.state(|state| state.put("p/o", b"longer", &[]));
        assert!(!bucket.head("o").unwrap().is_same(&info), "{etags:?}");
        let mut bytes = Vec::new();
        let read = bucket.read("o", &info, 0..3, &mut |part| bytes.extend_from_slice(part));
        assert!(matches!(read, Err(BucketError::Changed(_))), "{etags:?}: {read:?} {bytes:?}");
        if etags == Etags::Const {
            // Each object meets a condition on it.
            continue;
        }
        let done = put(&*bucket, b"lost", &Expected::Same(info));
        assert!(matches!(done, Err(BucketError::Changed(_))), "{etags:?}: {done:?}");
        assert_eq!(stored(&store, "p/o").unwrap(), b"longer", "{etags:?}");
    }
}
