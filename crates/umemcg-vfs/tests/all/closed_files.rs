//! Data of closed files: it waits like any other, it goes with a file that is removed, and what it
//! holds meanwhile is bounded.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::common::{Fixture, ROOT, both_ways, name};
use umemcg::files::File;
use umemcg_vfs::{Create, Lookup, Names, NodeId, OFlags, Volume};

/// Longest wait for what must happen.
const TIMEOUT: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Creates a file, writes to it and closes it; its cached content, as long as anything knows it.
fn write_and_close(v: &Fixture, path: &str) -> (NodeId, Weak<File>) {
    let (entry, file) = v.create(ROOT, path);
    v.write(&file, 0, &[7; 50_000]);
    (entry.node, Arc::downgrade(file.content()))
}

/// Removes a file that the kernel, here the test, has looked up once.
fn remove(v: &Fixture, path: &str, node: NodeId) {
    v.vfs.unlink(&v.root, ROOT, name(path)).unwrap();
    v.vfs.forget(node, 1);
}

/// Descriptors of this process that lead below a directory.
fn nr_descriptors_below(dir: &Path) -> usize {
    let targets = fs::read_dir("/proc/self/fd").unwrap();
    targets.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).filter(|to| to.starts_with(dir)).count()
}

/// Has the flusher look through all its files: it writes `path`, which was asked for last.
fn let_the_flusher_look(v: &Fixture, path: &str) {
    let (_, asked_for) = v.create(ROOT, path);
    v.write(&asked_for, 0, b"now");
    asked_for.content().start_writeback();
    until("the flusher writes what is due", || asked_for.content().is_stable());
}

#[test]
fn a_file_removed_soon_after_its_close_never_reaches_the_store() {
    both_ways(|v| {
        let (node, content) = write_and_close(v, "f");
        let on_host = fs::File::open(v.host("f")).unwrap();
        let_the_flusher_look(v, "due");
        assert_eq!(on_host.metadata().unwrap().size(), 0, "closed, but not due");
        remove(v, "f", node);
        v.engine.cache().dirty_limits().set_expire(Duration::ZERO);
        v.engine.cache().wake_flushers();
        until("the flusher lets go of it", || content.upgrade().is_none());
        let on_host = on_host.metadata().unwrap();
        assert_eq!((on_host.nlink(), on_host.size(), on_host.blocks()), (0, 0, 0));
    });
}

#[test]
fn a_closed_file_is_written_when_it_is_old_enough() {
    both_ways(|v| {
        write_and_close(v, "f");
        let limits = v.engine.cache().dirty_limits();
        limits.set_interval(Duration::from_millis(10));
        limits.set_expire(Duration::from_millis(50));
        v.engine.cache().wake_flushers();
        until("it is written", || fs::read(v.host("f")).unwrap() == [7; 50_000]);
    });
}

#[test]
fn of_many_closed_files_the_oldest_are_written_first() {
    let v = Fixture::with(|config| config.max_idle_descriptors = 16);
    for nr in 0..12 {
        write_and_close(&v, &format!("f{nr}"));
    }
    let is_written = |nr: u32| fs::metadata(v.host(&format!("f{nr}"))).unwrap().size() > 0;
    until("what is beyond half of the bound is written", || (0..4).all(is_written));
    let_the_flusher_look(&v, "due");
    assert!((4..12).all(|nr| !is_written(nr)), "the younger ones wait");
}

#[test]
fn closed_files_with_data_hold_a_bounded_number_of_descriptors() {
    let v = Fixture::with(|config| config.max_idle_descriptors = 16);
    for nr in 0..200 {
        write_and_close(&v, &format!("f{nr}"));
        let nr_held = nr_descriptors_below(v.dir.path());
        assert!(nr_held <= 2 * 16 + 4, "{nr_held} after {nr} files");
    }
    v.vfs.syncfs().unwrap();
    assert!((0..200).all(|nr| fs::read(v.host(&format!("f{nr}"))).unwrap() == [7; 50_000]));
}

#[test]
fn nothing_is_kept_of_a_removed_file_or_of_its_group() {
    let v = Fixture::new();
    // No look by itself while this test runs.
    v.engine.cache().dirty_limits().set_interval(Duration::from_secs(3600));
    let tenant = v.engine.create_group(v.engine.root(), name("tenant")).unwrap();
    let mut caller = v.user(0, 0);
    caller.group = Arc::clone(&tenant);
    for nr in 0..100 {
        let path = format!("f{nr}");
        let (entry, file) = v.vfs.create(&caller, ROOT, name(&path), 0o644, OFlags::RDWR).unwrap();
        file.write(&tenant, 0, &[7; 50_000], false).unwrap();
        let content = Arc::downgrade(file.content());
        drop(file);
        remove(&v, &path, entry.node);
        assert!(content.upgrade().is_none(), "file {nr}");
    }
    assert!(nr_descriptors_below(v.dir.path()) <= 2, "their space on the host is free");
    v.engine.remove_group(&tenant).unwrap();
    let known = Arc::downgrade(&tenant);
    drop((caller, tenant));
    assert!(known.upgrade().is_none(), "nothing holds the group any more");
}
