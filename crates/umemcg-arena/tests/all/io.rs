//! System calls on frames, against real files.
#![cfg(not(any(loom, miri)))]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use umemcg_arena::io::{self, IOV_MAX, read_at, send, write_at};
use umemcg_arena::{Arena, FrameId, IoFlags, Segment};
use umemcg_base::PAGE_SIZE;

fn arena() -> (Arc<Arena>, Vec<FrameId>) {
    let arena = Arena::new(16 << 20).unwrap();
    let mut frames = Vec::new();
    assert_eq!(arena.alloc(&mut frames, 4096), 4096);
    frames.sort_unstable();
    (arena, frames)
}

fn whole(frames: &[FrameId]) -> Vec<Segment> {
    frames.iter().map(|&frame| Segment { frame, offset: 0, len: PAGE_SIZE as u16 }).collect()
}

/// Says that something was not tested, past the harness, which keeps the output of tests that pass.
fn skip(why: &str) {
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 167) ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn fill(arena: &Arena, segments: &[Segment], bytes: &[u8]) {
    let mut at = 0;
    for segment in segments {
        arena.copy_in(segment.frame, segment.offset.into(), &bytes[at..at + usize::from(segment.len)]);
        at += usize::from(segment.len);
    }
}

fn collect(arena: &Arena, segments: &[Segment]) -> Vec<u8> {
    let mut bytes = vec![0; umemcg_arena::total_len(segments)];
    let mut at = 0;
    for segment in segments {
        arena.copy_out(segment.frame, segment.offset.into(), &mut bytes[at..at + usize::from(segment.len)]);
        at += usize::from(segment.len);
    }
    bytes
}

/// Every second frame backwards: nothing merges.
fn scattered(frames: &[FrameId]) -> Vec<FrameId> {
    frames.iter().rev().step_by(2).copied().collect()
}

/// Ways to lay `n` segments of odd sizes over frames.
fn shapes(frames: &[FrameId]) -> Vec<(&'static str, Vec<Segment>)> {
    let bits = |frame: FrameId| (0..8).map(move |at| Segment { frame, offset: at * 500 + 3, len: at * 61 });
    vec![
        ("nothing", vec![]),
        ("one byte", vec![Segment { frame: frames[0], offset: 4095, len: 1 }]),
        ("adjacent frames", whole(&frames[..64])),
        ("more adjacent frames than a vector has pieces", whole(&frames[..2 * IOV_MAX])),
        ("scattered frames", whole(&scattered(&frames[..64]))),
        ("more scattered frames than a vector has pieces", whole(&scattered(&frames[..2 * IOV_MAX + 500]))),
        ("bits of frames, some empty", frames[..400].iter().copied().flat_map(bits).collect()),
        (
            "a frame in parts that touch",
            [(0, 1000), (1000, 3000), (4000, 96)]
                .map(|(offset, len)| Segment { frame: frames[9], offset, len })
                .to_vec(),
        ),
    ]
}

#[test]
fn what_is_written_from_frames_is_read_back_into_others() {
    let (arena, frames) = arena();
    for (shape, segments) in shapes(&frames) {
        for offset in [0, 1, 4096, 1_000_003] {
            let file = tempfile::tempfile().unwrap();
            let bytes = pattern(umemcg_arena::total_len(&segments));
            fill(&arena, &segments, &bytes);
            let written = write_at(&arena, &segments, file.as_fd(), offset, IoFlags::NONE).unwrap();
            assert_eq!(written, bytes.len(), "{shape}");
            let mut there = vec![0; bytes.len()];
            file.read_exact_at(&mut there, offset).unwrap();
            assert!(there == bytes, "{shape} at {offset}: written wrongly");
            let length = if bytes.is_empty() { 0 } else { offset + bytes.len() as u64 };
            assert_eq!(file.metadata().unwrap().len(), length, "{shape}");

            for &frame in &frames[..2 * IOV_MAX + 500] {
                arena.zero(frame, 0, PAGE_SIZE);
            }
            let read = read_at(&arena, &segments, file.as_fd(), offset, IoFlags::NONE).unwrap();
            assert_eq!(read, bytes.len(), "{shape}");
            assert!(collect(&arena, &segments) == bytes, "{shape} at {offset}: read wrongly");
        }
    }
}

#[test]
fn a_short_read_means_the_end_and_leaves_the_rest_alone() {
    let (arena, frames) = arena();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&pattern(10_000), 0).unwrap();
    let segments = whole(&scattered(&frames[..16]));
    fill(&arena, &segments, &[0xaa; 8 * PAGE_SIZE]);
    assert_eq!(read_at(&arena, &segments, file.as_fd(), 0, IoFlags::NONE).unwrap(), 10_000);
    let bytes = collect(&arena, &segments);
    assert!(bytes[..10_000] == pattern(10_000));
    assert!(bytes[10_000..].iter().all(|&byte| byte == 0xaa));
    assert_eq!(read_at(&arena, &segments, file.as_fd(), 10_000, IoFlags::NONE).unwrap(), 0);
    assert_eq!(read_at(&arena, &segments, file.as_fd(), 1 << 40, IoFlags::NONE).unwrap(), 0);
}

#[test]
fn a_store_that_is_full_on_the_way_has_taken_a_part() {
    use rustix::fs::{MemfdFlags, SealFlags};
    let (arena, frames) = arena();
    let segments = whole(&scattered(&frames[..8]));
    fill(&arena, &segments, &pattern(4 * PAGE_SIZE));
    let file = rustix::fs::memfd_create("full", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 2 * PAGE_SIZE as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let written = write_at(&arena, &segments, file.as_fd(), 0, IoFlags::NONE).unwrap();
    assert_eq!(written, 2 * PAGE_SIZE, "what the file has room for");
    let error = write_at(&arena, &segments[2..], file.as_fd(), written as u64, IoFlags::NONE).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn an_error_is_an_error_when_nothing_went_before() {
    let (arena, frames) = arena();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let write_only = File::create(&path).unwrap();
    let segments = whole(&frames[..2]);
    let error = read_at(&arena, &segments, write_only.as_fd(), 0, IoFlags::NONE).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    let read_only = File::open(&path).unwrap();
    let error = write_at(&arena, &segments, read_only.as_fd(), 0, IoFlags::NONE).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    let error = write_at(&arena, &segments, write_only.as_fd(), u64::MAX, IoFlags::NONE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = write_at(&arena, &segments, full.as_fd(), 0, IoFlags::NONE).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn frames_are_aligned_for_direct_io() {
    let (arena, frames) = arena();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("direct");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    let file = match open {
        Ok(file) => file,
        Err(error) => return skip(&format!("no direct I/O in {}: {error}", directory.path().display())),
    };
    let segments = whole(&scattered(&frames[..64]));
    let bytes = pattern(32 * PAGE_SIZE);
    fill(&arena, &segments, &bytes);
    assert_eq!(write_at(&arena, &segments, file.as_fd(), 4096, IoFlags::NONE).unwrap(), bytes.len());
    // The end of the file lies inside a sector; the kernel refuses to go on reading from there.
    file.set_len(4096 + 100_001).unwrap();
    for segment in &segments {
        arena.zero(segment.frame, 0, PAGE_SIZE);
    }
    assert_eq!(read_at(&arena, &segments, file.as_fd(), 4096, IoFlags::NONE).unwrap(), 100_001);
    assert!(collect(&arena, &segments)[..100_001] == bytes[..100_001]);
}

/// Pages of a file in the kernel's page cache.
fn nr_cached(file: &File) -> usize {
    let len = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0u8; len.div_ceil(PAGE_SIZE)];
    // SAFETY: A new mapping of the file, one byte of room for each of its pages, and nothing reads
    // the mapping.
    unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(file),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, len, pages.as_mut_ptr()), 0);
        libc::munmap(map, len);
    }
    pages.iter().filter(|&&page| page & 1 != 0).count()
}

#[test]
fn uncached_io_leaves_nothing_in_the_kernel() {
    let (arena, frames) = arena();
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let segments = whole(&frames[..256]);
    let bytes = pattern(256 * PAGE_SIZE);
    fill(&arena, &segments, &bytes);
    match write_at(&arena, &segments, file.as_fd(), 0, IoFlags::DONTCACHE | IoFlags::DSYNC) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            return skip("this kernel or file system has no uncached I/O");
        }
        written => assert_eq!(written.unwrap(), bytes.len()),
    }
    for segment in &segments {
        arena.zero(segment.frame, 0, PAGE_SIZE);
    }
    assert_eq!(read_at(&arena, &segments, file.as_fd(), 0, IoFlags::DONTCACHE).unwrap(), bytes.len());
    assert!(collect(&arena, &segments) == bytes);
    assert!(nr_cached(&file) < 256 / 4, "{} of 256 pages are cached", nr_cached(&file));
}

#[test]
fn a_reply_is_one_message() {
    let (arena, frames) = arena();
    let (ours, mut theirs) = seqpacket();
    let segments = whole(&scattered(&frames[..40]));
    let bytes = pattern(20 * PAGE_SIZE);
    fill(&arena, &segments, &bytes);
    for segments in [&segments[..], &segments[..1], &[]] {
        let sent = send(&arena, ours.as_fd(), b"header", segments).unwrap();
        let mut message = vec![0; 1 << 20];
        let received = theirs.read(&mut message).unwrap();
        assert_eq!((sent, received), (6 + umemcg_arena::total_len(segments), sent));
        assert_eq!(&message[..6], b"header");
        assert!(message[6..received] == bytes[..received - 6]);
    }
}

/// A pair of sockets that keep messages apart.
fn seqpacket() -> (File, File) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (a.into(), b.into())
}

#[test]
fn a_reply_of_a_mebibyte_fits_and_one_that_does_not_is_refused() {
    let (arena, frames) = arena();
    let file = tempfile::tempfile().unwrap();
    // 256 scattered frames and a header are 257 pieces.
    let segments = whole(&scattered(&frames[..512]));
    assert_eq!(send(&arena, file.as_fd(), &[1; 16], &segments).unwrap(), 16 + (1 << 20));
    // Adjacent frames are one piece, however many.
    assert_eq!(send(&arena, file.as_fd(), &[1; 16], &whole(&frames)).unwrap(), 16 + (16 << 20));
    let length = file.metadata().unwrap().len();
    let fits = whole(&scattered(&frames[..2 * (IOV_MAX - 1)]));
    assert_eq!(fits.len(), IOV_MAX - 1);
    assert!(send(&arena, file.as_fd(), &[1; 16], &fits).is_ok());
    let too_many = whole(&scattered(&frames[..2 * IOV_MAX]));
    let error = send(&arena, file.as_fd(), &[1; 16], &too_many).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let grown = file.metadata().unwrap().len() - length;
    assert_eq!(grown as usize, 16 + umemcg_arena::total_len(&fits), "a refused reply sent something");
}

#[test]
fn ranges_are_synced_where_there_is_a_file() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(1 << 20)).unwrap();
    io::sync_file_range_wait(file.as_fd(), 4096, 8192).unwrap();
    io::sync_file_range_wait(file.as_fd(), 0, 0).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let error = io::sync_file_range_wait(reader.as_fd(), 0, 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
    let error = io::sync_file_range_wait(file.as_fd(), u64::MAX, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_segment_stays_in_its_frame() {
    let (arena, frames) = arena();
    let file = tempfile::tempfile().unwrap();
    let bad = [
        Segment { frame: frames[0], offset: 1, len: 4096 },
        Segment { frame: frames[0], offset: u16::MAX, len: 1 },
        Segment { frame: FrameId::NONE, offset: 0, len: 1 },
        Segment { frame: FrameId::from_raw(4096), offset: 0, len: 1 },
    ];
    for segment in bad {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            write_at(&arena, &[segment], file.as_fd(), 0, IoFlags::NONE)
        }));
        assert!(refused.is_err(), "{segment:?}");
    }
    assert_eq!(file.metadata().unwrap().len(), 0);
}
