//! Objects that another program changes while they are written, cut or renamed here: nothing of
//! either is lost unseen.

mod common;

use common::memory_bucket::ChangeFault;
use common::object_world::{World, errno};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use umemcg_vfs::object::BucketError;
use umemcg_vfs::{OFlags, RenameFlags, SetAttr};

fn changed() -> ChangeFault {
    ChangeFault::Refused(BucketError::Changed("412".into()))
}

#[test]
fn a_renamed_directory_takes_no_unseen_version_for_its_own() {
    let w = World::new();
    w.bucket.put("d/read", "first");
    w.bucket.put("d/open", "first");
    assert_eq!(w.get("d/read").unwrap(), b"first");
    let open = w.open("d/open", OFlags::RDWR).unwrap();
    w.write(&open, 0, b"F").unwrap();
    open.flush().unwrap();
    w.bucket.put("d/read", "the second version");
    w.bucket.put("d/open", "theirs");
    w.rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!(w.get("e/read").unwrap(), b"the second version", "no bytes of the first");
    let written = w.write(&open, 0, b"x").and_then(|()| open.flush());
    assert!(written.is_err(), "it stands for another version");
    drop(open);
    assert_eq!(w.stored("e/open").unwrap(), b"theirs");
}

#[test]
fn a_rename_deletes_nothing_that_another_program_stored() {
    let w = World::new();
    w.put("f", b"first").unwrap();
    let file = w.open("f", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"ours!").unwrap();
    w.bucket.put("f", "theirs");
    w.rename("f", "g", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("f").unwrap(), w.stored("g").unwrap()), (b"theirs".into(), b"ours!".into()));
    // Their own versions go, also one of which an answer was lost.
    w.write(&file, 0, b"OURS!").unwrap();
    w.rename("g", "h", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("g"), w.stored("h").unwrap()), (None, b"OURS!".into()));
}

#[test]
fn what_lost_a_race_is_kept_as_it_was_written() {
    let w = World::new();
    w.put("f", b"first").unwrap();
    let file = w.open("f", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"ours!").unwrap();
    w.bucket.fail_changes([changed()]);
    w.bucket.put("f", "theirs");
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(errno(file.setattr(&w.me, &size)), Some(Errno::IO));
    let punched = file.fallocate(w.group(), FallocateFlags::ZERO_RANGE, 0, 4096, false);
    assert_eq!(errno(punched), Some(Errno::IO));
    let staged = w.staged();
    assert_eq!((staged.len(), staged[0].is_lost), (1, true));
    assert_eq!(std::fs::read(&staged[0].path).unwrap(), b"ours!");
    assert_eq!(w.stored("f").unwrap(), b"theirs");
}

#[test]
fn room_beyond_the_end_is_not_taken_on_the_disk() {
    let w = World::new();
    let file = w.create("f").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    for mode in [FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE] {
        file.fallocate(w.group(), mode, 0, 1 << 40, false).unwrap();
        file.fallocate(w.group(), mode, 1 << 20, 1 << 40, false).unwrap();
    }
    assert_eq!(file.getattr().unwrap().size, 5);
    let collapse = file.fallocate(w.group(), FallocateFlags::COLLAPSE_RANGE, 0, 4096, false);
    assert_eq!(errno(collapse), Some(Errno::OPNOTSUPP));
    file.flush().unwrap();
    assert_eq!(w.stored("f").unwrap(), b"\0\0\0\0\0");
}
