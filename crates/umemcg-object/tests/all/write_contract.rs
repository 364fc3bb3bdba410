//! What a volume expects of a bucket that it writes to: of a store in memory, of a directory, and
//! of real servers.

use std::io;
use std::sync::{Arc, Mutex};

use crate::servers::source::{Source, bytes_of};
use crate::servers::{Azurite, Moto, SeaweedFs, Server};
use object_store::memory::InMemory;
use umemcg_object::{ObjectOptions, StoreBucket, open};
use umemcg_vfs::bucket::{
    Bucket, BucketError, Expected, Metadata, ObjectInfo, PartBytes, PartEnd, PartedUpload, UNKNOWN_UPLOAD,
    UPLOAD_MARK, UploadNote,
};

/// What not every store has.
#[derive(Debug, Clone, Copy)]
struct Abilities {
    metadata: bool,
    /// Keys that end with a slash.
    directories: bool,
    /// Their objects have metadata. SeaweedFS drops those.
    directory_metadata: bool,
    /// Their objects are listed as those of the directory.
    directory_is_listed: bool,
    /// An object of more bytes than this goes in parts.
    part_bytes: usize,
    /// Uploads in parts have an id.
    has_uploads: bool,
}

fn metadata(abilities: Abilities) -> Metadata {
    if abilities.metadata {
        vec![("mode".into(), "33188".into()), ("mtime".into(), "1234567890.5".into())]
    } else {
        Metadata::new()
    }
}

fn store(
    bucket: &dyn Bucket,
    key: &str,
    bytes: &[u8],
    expected: &Expected,
) -> Result<ObjectInfo, BucketError> {
    bucket.upload(key, &Source::of(bytes), &Metadata::new(), expected)
}

/// Returns an object's metadata, without the mark of its upload.
fn metadata_of(info: &ObjectInfo) -> Metadata {
    let mut metadata = without_headers(info);
    metadata.retain(|(name, _)| name != UPLOAD_MARK);
    metadata
}

/// Returns the metadata without headers, such as the type of the content, which servers choose.
pub fn without_headers(info: &ObjectInfo) -> Metadata {
    let metadata = info.metadata.as_deref().unwrap().iter();
    metadata.filter(|(name, _)| !name.starts_with(':')).cloned().collect()
}

#[track_caller]
fn is_changed<T: std::fmt::Debug>(result: Result<T, BucketError>) {
    assert!(matches!(result, Err(BucketError::Changed(_))), "{result:?}");
}

/// The claims that hold of every store.
fn holds(bucket: &dyn Bucket, abilities: Abilities) {
    conditions_hold(bucket);
    metadata_stay(bucket, abilities);
    copies_are_of_one_version(bucket, abilities);
    metadata_are_replaced(bucket);
    large_objects_go_in_parts(bucket, abilities);
    parts_come_one_by_one(bucket, abilities);
    if abilities.directories {
        directories_have_objects(bucket, abilities);
    }
}

fn conditions_hold(bucket: &dyn Bucket) {
    let first = store(bucket, "d/o", b"first", &Expected::Absent).unwrap();
    let found = bucket.head("d/o").unwrap();
    assert!(found.is_same(&first) && found.size == 5 && first.size == 5, "{first:?} {found:?}");
    assert_eq!(found.etag, first.etag);
    is_changed(store(bucket, "d/o", b"other", &Expected::Absent));
    assert_eq!(bytes_of(bucket, "d/o").unwrap(), b"first");

    let second = store(bucket, "d/o", b"second!", &Expected::Same(first.clone())).unwrap();
    assert!(!second.is_same(&first));
    is_changed(store(bucket, "d/o", b"other", &Expected::Same(first)));
    assert_eq!(bytes_of(bucket, "d/o").unwrap(), b"second!");
    store(bucket, "d/o", b"third", &Expected::Anything).unwrap();
    assert_eq!(bytes_of(bucket, "d/o").unwrap(), b"third");

    bucket.delete("d/o").unwrap();
    assert!(matches!(bucket.head("d/o"), Err(BucketError::NotFound(_))));
    bucket.delete("d/o").unwrap();
    is_changed(store(bucket, "d/o", b"other", &Expected::Same(second)));
    assert!(matches!(bucket.head("d/o"), Err(BucketError::NotFound(_))));
    assert_eq!(store(bucket, "d/ü n", b"", &Expected::Absent).unwrap().size, 0);
    assert_eq!(bucket.head("d/ü n").unwrap().size, 0);
}

fn metadata_stay(bucket: &dyn Bucket, abilities: Abilities) {
    let metadata = metadata(abilities);
    let stored = bucket.upload("meta", &Source::of(*b"m"), &metadata, &Expected::Absent).unwrap();
    assert_eq!(metadata_of(&stored), metadata);
    assert_eq!(without_headers(&bucket.head("meta").unwrap()), without_headers(&stored));
    // Azure's library leaves an object out whose key is the whole prefix.
    let mut names = bucket.list("", None, 10).unwrap().names;
    names.retain(|listed| listed.name == "meta");
    assert_eq!(names.pop().unwrap().object.unwrap().metadata, None, "a listing does not tell them");
    if abilities.metadata {
        let bad = vec![("a b".to_owned(), "x".to_owned())];
        let refused = bucket.upload("meta", &Source::of(*b"m"), &bad, &Expected::Anything);
        assert!(matches!(refused, Err(BucketError::Source(_))), "{refused:?}");
    }
}

fn copies_are_of_one_version(bucket: &dyn Bucket, abilities: Abilities) {
    let metadata = metadata(abilities);
    let info = bucket.upload("c/from", &Source::of(*b"copied"), &metadata, &Expected::Absent).unwrap();
    let copy = bucket.copy("c/from", &info, "c/to", &Expected::Absent).unwrap();
    assert_eq!(bytes_of(bucket, "c/to").unwrap(), b"copied");
    let found = bucket.head("c/to").unwrap();
    assert!(found.is_same(&copy), "{found:?} {copy:?}");
    assert_eq!(metadata_of(&found), metadata);
    is_changed(bucket.copy("c/from", &info, "c/to", &Expected::Absent));
    is_changed(bucket.copy("c/from", &info, "c/nothing", &Expected::Same(copy.clone())));

    let newer = store(bucket, "c/from", b"newer", &Expected::Same(info.clone())).unwrap();
    is_changed(bucket.copy("c/from", &info, "c/third", &Expected::Anything));
    bucket.copy("c/from", &newer, "c/to", &Expected::Same(copy)).unwrap();
    assert_eq!(bytes_of(bucket, "c/to").unwrap(), b"newer");
    bucket.copy("c/from", &newer, "c/to", &Expected::Anything).unwrap();
    let none = bucket.copy("c/none", &newer, "c/fourth", &Expected::Anything);
    assert!(matches!(none, Err(BucketError::NotFound(_) | BucketError::Changed(_))), "{none:?}");
    // Not a name for the same bytes: what is stored later in one does not show in the other.
    store(bucket, "c/from", b"newest", &Expected::Anything).unwrap();
    assert_eq!(bytes_of(bucket, "c/to").unwrap(), b"newer");
}

/// Only S3 can; others take the object anew.
fn metadata_are_replaced(bucket: &dyn Bucket) {
    if !bucket.replaces_metadata(6) {
        return;
    }
    let of = |value: &str| vec![("mode".to_owned(), value.to_owned()), ("other".to_owned(), "x".to_owned())];
    let info = bucket.upload("r", &Source::of(*b"bytes!"), &of("1"), &Expected::Absent).unwrap();
    let replaced = bucket.replace_metadata("r", &info, &of("2")).unwrap();
    let found = bucket.head("r").unwrap();
    assert!(found.is_same(&replaced) && found.is_same(&info), "{found:?} {replaced:?}");
    assert_eq!((metadata_of(&found), metadata_of(&replaced)), (of("2"), of("2")));
    assert_ne!(found.metadata, info.metadata, "another mark");
    assert_eq!(bytes_of(bucket, "r").unwrap(), b"bytes!");
    bucket.replace_metadata("r", &replaced, &Metadata::new()).unwrap();
    assert_eq!(metadata_of(&bucket.head("r").unwrap()), Metadata::new());

    let newer = store(bucket, "r", b"newer", &Expected::Anything).unwrap();
    is_changed(bucket.replace_metadata("r", &info, &of("3")));
    let found = bucket.head("r").unwrap();
    assert_eq!((metadata_of(&found), bytes_of(bucket, "r").unwrap()), (Metadata::new(), b"newer".to_vec()));
    bucket.delete("r").unwrap();
    let gone = bucket.replace_metadata("r", &newer, &of("4"));
    assert!(matches!(gone, Err(BucketError::NotFound(_) | BucketError::Changed(_))), "{gone:?}");
    let bad = vec![("a b".to_owned(), "x".to_owned())];
    let refused = bucket.replace_metadata("r", &newer, &bad);
    assert!(matches!(refused, Err(BucketError::Source(_))), "{refused:?}");
}

fn large_objects_go_in_parts(bucket: &dyn Bucket, abilities: Abilities) {
    let size = 2 * abilities.part_bytes + 4711;
    let notes = |source: &Source| (source.notes(), source.open_upload());
    // First without an id.
    let over = if abilities.has_uploads { vec![true, true, false] } else { vec![] };
    let (one, two) = (Source::pattern(size, 1), Source::pattern(size, 2));
    let metadata = metadata(abilities);
    let first = bucket.upload("large", &one, &metadata, &Expected::Absent).unwrap();
    assert_eq!(notes(&one), (over.clone(), None));
    let found = bucket.head("large").unwrap();
    assert_eq!((&found.etag, found.size), (&first.etag, size as u64));
    assert_eq!(metadata_of(&found), metadata);
    assert!(bytes_of(bucket, "large").unwrap() == one.bytes);

    is_changed(bucket.upload("large", &two, &metadata, &Expected::Absent));
    assert_eq!(notes(&two), (over.clone(), None), "given up");
    assert!(bytes_of(bucket, "large").unwrap() == one.bytes);
    bucket.upload("large", &two, &metadata, &Expected::Same(first.clone())).unwrap();
    assert!(bytes_of(bucket, "large").unwrap() == two.bytes);
    is_changed(bucket.upload("large", &one, &metadata, &Expected::Same(first)));

    let unread = Source::pattern(size, 3).calling(size as u64 - 1, || Err(io::ErrorKind::NotFound.into()));
    let failed = bucket.upload("large", &unread, &metadata, &Expected::Anything);
    assert!(matches!(failed, Err(BucketError::Source(_))), "{failed:?}");
    assert_eq!(notes(&unread), (over, None), "given up");
    assert!(bytes_of(bucket, "large").unwrap() == two.bytes, "whole or not at all");

    let memory = bucket.upload_bytes(size as u64);
    assert!(memory >= 2 * abilities.part_bytes as u64 && memory <= size as u64, "{memory}");
}

/// Sends a part, and waits until it has come.
fn send(upload: &dyn PartedUpload, bytes: &[u8]) -> Result<(), BucketError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    upload.begin_part(
        PartBytes::from(bytes.to_vec()),
        PartEnd::new(move |result| sender.send(result).unwrap()),
    );
    receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("an end")
}

/// What was noted of an upload, in order.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<Option<String>>>);

impl UploadNote for Notes {
    fn note(&self, upload: Option<&str>) -> std::io::Result<()> {
        self.0.lock().unwrap().push(upload.map(str::to_owned));
        Ok(())
    }
}

impl Notes {
    /// Checks that an upload which is over was noted with its id, if it has one, and is not any
    /// more.
    fn check(&self, what: &str) {
        let noted = std::mem::take(&mut *self.0.lock().unwrap());
        let is_id = |noted: &Option<String>| noted.as_ref().is_some_and(|id| id != UNKNOWN_UPLOAD);
        let is_whole = matches!(&noted[..], [.., id, None] if is_id(id));
        assert!(is_whole || noted.iter().all(Option::is_none), "{what}: {noted:?}");
    }
}

fn parts_come_one_by_one(bucket: &dyn Bucket, abilities: Abilities) {
    let part = abilities.part_bytes;
    assert_eq!(bucket.part_bytes(), part as u64);
    let bytes = Source::pattern(2 * part + 4711, 5).bytes;
    let metadata = metadata(abilities);
    let notes = Arc::<Notes>::default();
    let begin = |expected: &Expected| {
        let note = Arc::clone(&notes);
        bucket.begin_upload("parts", &metadata, expected, note).unwrap()
    };
    let upload = begin(&Expected::Absent);
    bytes.chunks(part).for_each(|part| send(&*upload, part).unwrap());
    assert!(matches!(bucket.head("parts"), Err(BucketError::NotFound(_))), "whole or not at all");
    let first = upload.complete().unwrap();
    let found = bucket.head("parts").unwrap();
    assert_eq!((&found.etag, found.size), (&first.etag, bytes.len() as u64));
    assert_eq!(metadata_of(&found), metadata);
    assert!(bytes_of(bucket, "parts").unwrap() == bytes);
    assert!(upload.complete().is_err() && send(&*upload, b"x").is_err(), "it is over");
    notes.check("completed");

    let upload = begin(&Expected::Absent);
    send(&*upload, b"other").unwrap();
    is_changed(upload.complete());
    notes.check("refused");
    let upload = begin(&Expected::Same(first));
    send(&*upload, b"other").unwrap();
    assert_eq!(upload.complete().unwrap().size, 5);
    assert_eq!(bytes_of(bucket, "parts").unwrap(), b"other");

    let upload = begin(&Expected::Anything);
    send(&*upload, &bytes[..part]).unwrap();
    upload.abort().unwrap();
    upload.abort().unwrap();
    notes.check("given up");
    // One that is dropped is ended by another thread.
    let nr_uploads = Arc::strong_count(&notes);
    let upload = begin(&Expected::Anything);
    send(&*upload, &bytes[..part]).unwrap();
    drop(upload);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while Arc::strong_count(&notes) > nr_uploads {
        assert!(std::time::Instant::now() < until, "it is never ended");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    notes.check("dropped");
    assert_eq!(bytes_of(bucket, "parts").unwrap(), b"other");
}

fn directories_have_objects(bucket: &dyn Bucket, abilities: Abilities) {
    let metadata = metadata(abilities);
    let found = if abilities.directory_metadata { metadata.clone() } else { Metadata::new() };
    bucket.upload("m/", &Source::of([]), &metadata, &Expected::Absent).unwrap();
    is_changed(bucket.upload("m/", &Source::of([]), &metadata, &Expected::Absent));
    let info = bucket.head("m/").unwrap();
    assert_eq!(metadata_of(&info), found);
    assert!(matches!(bucket.head("m"), Err(BucketError::NotFound(_))), "it is no file");
    let listed = bucket.list("m/", None, 10).unwrap().names;
    let own: &[&str] = if abilities.directory_is_listed { &[""] } else { &[] };
    assert_eq!(listed.iter().map(|listed| &*listed.name).collect::<Vec<_>>(), own);
    let listed = bucket.list("m", None, 10).unwrap().names;
    assert_eq!(
        listed.iter().map(|listed| &*listed.name).collect::<Vec<_>>(),
        ["m", "meta"],
        "of those above"
    );
    bucket.copy("m/", &info, "n/", &Expected::Absent).unwrap();
    assert_eq!(metadata_of(&bucket.head("n/").unwrap()), found);
    store(bucket, "m/below", b"x", &Expected::Absent).unwrap();
    bucket.delete("m/").unwrap();
    assert_eq!(bytes_of(bucket, "m/below").unwrap(), b"x", "what is below stays");
    bucket.delete("m/below").unwrap();
    for key in ["m/", "n/"] {
        bucket.delete(key).unwrap();
        assert!(matches!(bucket.head(key), Err(BucketError::NotFound(_))), "{key}");
    }
}

/// Of a store that is no server.
fn plain(metadata: bool, directories: bool, part_bytes: usize) -> Abilities {
    Abilities {
        metadata,
        directories,
        directory_metadata: false,
        directory_is_listed: false,
        part_bytes,
        has_uploads: false,
    }
}

#[test]
fn of_a_store_in_memory() {
    const PART_BYTES: usize = 4096;
    let store = Arc::new(InMemory::new());
    let bucket = StoreBucket::of_store(store, "memory://x/p", "p", PART_BYTES as u64).unwrap();
    holds(&bucket, plain(true, false, PART_BYTES));
}

#[test]
fn of_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("p")).unwrap();
    let url = format!("file://{}/p", directory.path().display());
    let bucket = open(&url, &ObjectOptions::default()).unwrap();
    holds(&*bucket, plain(false, true, 8 << 20));
}

#[test]
#[ignore = "needs moto (make test-object)"]
fn of_moto() {
    let server = Moto::start();
    of_server(&server, true);
    // SeaweedFS would make it.
    let missing = store(&*server.bucket("no-such-bucket/p"), "o", b"x", &Expected::Absent);
    assert!(
        matches!(&missing, Err(BucketError::Unavailable(text)) if text.contains("NoSuchBucket")),
        "{missing:?}"
    );
}

#[test]
#[ignore = "needs SeaweedFS (make test-object)"]
fn of_seaweedfs() {
    of_server(&SeaweedFs::start(), false);
}

#[test]
#[ignore = "needs Azurite (make test-object)"]
fn of_azurite() {
    let server = Azurite::start();
    let _ = server.store("written");
    let bucket = server.bucket("written/p");
    // Uploads in parts have no id.
    let abilities =
        Abilities { directory_metadata: true, directory_is_listed: true, ..plain(true, true, 8 << 20) };
    holds(&*bucket, abilities);
    let figures = bucket.figures();
    assert!(figures.puts > 0 && figures.copies > 0, "{figures:?}");
    assert_eq!((figures.failures, bucket.trouble()), (0, None));
}

fn of_server(server: &dyn Server, directory_metadata: bool) {
    let _ = server.store("written");
    let bucket = server.bucket("written/p");
    let abilities = Abilities {
        metadata: true,
        directories: true,
        directory_metadata,
        directory_is_listed: true,
        part_bytes: 8 << 20,
        has_uploads: true,
    };
    holds(&*bucket, abilities);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while server.nr_uploads("written") > 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(server.nr_uploads("written"), 0);
    what_a_crash_leaves_is_ended(server, &*bucket);
    let figures = bucket.figures();
    assert!(figures.puts > 0 && figures.copies > 0 && figures.deletes > 0, "{figures:?}");
    assert_eq!((figures.failures, bucket.trouble()), (0, None));
}

fn what_a_crash_leaves_is_ended(server: &dyn Server, bucket: &dyn Bucket) {
    let source = Source::pattern(17 << 20, 1).calling(9 << 20, || panic!("so to speak a crash"));
    let upload = || bucket.upload("crash", &source, &Metadata::new(), &Expected::Absent);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(upload)).is_err());
    assert_eq!(server.nr_uploads("written"), 1);
    let upload = source.open_upload().unwrap();
    bucket.abort_upload("crash", &upload).unwrap();
    assert_eq!(server.nr_uploads("written"), 0);
    bucket.abort_upload("crash", &upload).unwrap();
    // Killed before an id came.
    let begin = "client.create_multipart_upload(Bucket='written', Key=key)";
    server.python(&format!("[{begin} for key in ('p/crash', 'p/crash-2', 'p/crash', 'p/crash/3')]"));
    bucket.abort_upload("crash", UNKNOWN_UPLOAD).unwrap();
    assert_eq!(server.nr_uploads("written"), 2, "those of this key only");
    bucket.abort_upload("crash", UNKNOWN_UPLOAD).unwrap();
    assert!(matches!(bucket.head("crash"), Err(BucketError::NotFound(_))));
}
