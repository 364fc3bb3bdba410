//! File handles, device calls, and tables of words that read as zero.

use std::sync::atomic::Ordering::Relaxed;

use umemcg_arena::ZeroTable;

/// Says that something was not tested, past the harness, which keeps the output of tests that pass.
#[cfg(not(miri))]
fn skip(why: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}

#[cfg(not(miri))]
mod handles {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::fs::{AtFlags, OFlags};
    use umemcg_arena::handle::{FileHandle, name_to_handle, open_by_handle};

    #[test]
    fn a_handle_survives_a_rename_and_not_a_removal() {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let parent = File::open(directory.path()).unwrap();
        fs::write(directory.path().join("a"), "text").unwrap();
        let (handle, mount) = match name_to_handle(parent.as_fd(), c"a", AtFlags::empty()) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return super::skip(&format!("no handles in {}", directory.path().display()));
            }
            named => named.unwrap(),
        };
        let (own, own_mount) = name_to_handle(parent.as_fd(), c"", AtFlags::EMPTY_PATH).unwrap();
        assert_eq!(mount, own_mount);
        assert_ne!(handle, own);
        fs::rename(directory.path().join("a"), directory.path().join("b")).unwrap();
        assert_eq!(name_to_handle(parent.as_fd(), c"b", AtFlags::empty()).unwrap().0, handle);
        let error = name_to_handle(parent.as_fd(), c"a", AtFlags::empty()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));

        let opened = match open_by_handle(parent.as_fd(), &handle, OFlags::RDONLY) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return super::skip("opening by handle needs CAP_DAC_READ_SEARCH");
            }
            opened => opened.unwrap(),
        };
        let mut text = String::new();
        File::from(opened).read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        fs::remove_file(directory.path().join("b")).unwrap();
        let error = open_by_handle(parent.as_fd(), &handle, OFlags::RDONLY).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));

        let too_long = FileHandle { kind: handle.kind, bytes: [0; 129].into() };
        let error = open_by_handle(parent.as_fd(), &too_long, OFlags::RDONLY).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[cfg(not(miri))]
mod device {
    use std::fs::{File, OpenOptions};
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use umemcg_arena::sys::clone_fuse_fd;

    #[test]
    fn a_second_queue_joins_a_session() {
        let open = || OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let (session, second) = match (open(), open()) {
            (Ok(session), Ok(second)) => (session, second),
            (Err(error), _) | (_, Err(error)) => return super::skip(&format!("/dev/fuse: {error}")),
        };
        let error = clone_fuse_fd(second.as_fd(), session.as_fd()).unwrap_err();
        assert!(error.raw_os_error().is_some(), "there is no session to join yet");

        let directory = tempfile::tempdir().unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", session.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        if let Err(error) =
            mount(c"test", directory.path(), c"fuse.umemcg-test", MountFlags::empty(), Some(&*options))
        {
            return super::skip(&format!("mounting: {error}"));
        }
        let joined = clone_fuse_fd(second.as_fd(), session.as_fd());
        let again = clone_fuse_fd(second.as_fd(), session.as_fd());
        let no_device = clone_fuse_fd(File::open("/dev/null").unwrap().as_fd(), session.as_fd());
        unmount(directory.path(), UnmountFlags::DETACH).unwrap();
        joined.unwrap();
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EINVAL), "joined already");
        assert_eq!(no_device.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}

#[test]
fn words_read_as_zero_until_written_and_after_a_discard() {
    let table = ZeroTable::new(5000).unwrap();
    assert_eq!((table.len(), table.is_empty()), (5000, false));
    for (start, end) in [(0, 5000), (0, 0), (3, 5), (512, 1024), (511, 1025), (100, 4999), (4096, 5000)] {
        for at in 0..5000 {
            table.get(at).store(at as u64 + 1, Relaxed);
        }
        table.discard(start..end);
        for at in 0..5000 {
            let expected = if (start..end).contains(&at) { 0 } else { at as u64 + 1 };
            assert_eq!(table.get(at).load(Relaxed), expected, "{at} after {start}..{end}");
        }
    }
}

#[test]
fn there_is_no_word_beyond_the_last() {
    let table = ZeroTable::new(10).unwrap();
    let refuses = |what: &dyn Fn()| {
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err());
    };
    refuses(&|| assert_eq!(table.get(10).load(Relaxed), 0));
    refuses(&|| table.discard(5..11));
    assert!(ZeroTable::new(0).unwrap().is_empty());
    assert!(ZeroTable::new(usize::MAX / 4).is_err());
}
