//! A volume of objects, above a bucket that the test plays.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::memory_bucket::MemoryBucket;
use rustix::io::Errno;
use umemcg::{Engine, EngineConfig, Group};
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::object::{Freshness, ObjectConfig};
use umemcg_vfs::volumes::{Syncing, Volumes};
use umemcg_vfs::{
    Attributes, Caller, FileKind, Lookup, NodeId, OFlags, ObjectVolume, Open, VfsError, Volume, VolumeDir,
    VolumeFile, VolumeKind,
};

const ROOT: NodeId = NodeId::ROOT;
/// Empty lists of two shrinkers, which stay until the next round of them.
const LISTS_BYTES: u64 = 320;

struct World {
    bucket: Arc<MemoryBucket>,
    volume: Arc<ObjectVolume>,
    engine: Arc<Engine>,
    me: Caller,
}

impl World {
    fn new(freshness: Freshness) -> Self {
        Self::of(Arc::default(), freshness)
    }

    fn of(bucket: Arc<MemoryBucket>, freshness: Freshness) -> Self {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let config = ObjectConfig {
            bucket: Arc::clone(&bucket) as _,
            freshness,
            stores_attributes: false,
            uid: 7,
            gid: 8,
            staging: None,
            streams: false,
            notes: None,
        };
        let volume = ObjectVolume::open(&engine, &config, 0).unwrap();
        let group = engine.create_group(engine.root(), OsStr::new("g")).unwrap();
        let me = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 1 };
        Self { bucket, volume, engine, me }
    }

    /// Returns the bytes of the group without what threads have taken in advance.
    fn usage(&self) -> u64 {
        self.group().drain_stocks();
        self.group().usage_bytes()
    }

    fn group(&self) -> &Arc<Group> {
        &self.me.group
    }

    /// Looks a path up; what it leads through is forgotten.
    fn find(&self, path: &str) -> Result<(NodeId, umemcg_vfs::Attr), VfsError> {
        let (mut node, mut attr) = (ROOT, self.volume.getattr(ROOT)?);
        for name in path.split('/') {
            let entry = self.volume.lookup(&self.me, node, OsStr::new(name));
            if node != ROOT {
                self.volume.forget(node, 1);
            }
            (node, attr) = (entry.as_ref().map_err(clone)?.node, entry?.attr);
        }
        Ok((node, attr))
    }

    /// Opens a file as the kernel does: once more from its name if it has become another.
    fn open(&self, path: &str) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let open = || {
            let (node, _) = self.find(path)?;
            let opened = self.volume.open(&self.me, node, OFlags::RDONLY);
            self.volume.forget(node, 1);
            opened
        };
        match open() {
            Err(error) if error.errno() == Errno::STALE => open(),
            opened => opened,
        }
    }

    fn read(&self, file: &Arc<dyn VolumeFile>, offset: u64, len: usize) -> Result<Vec<u8>, VfsError> {
        let pages = file.read(self.group(), offset, len)?;
        let mut bytes = Vec::new();
        for segment in pages.segments() {
            let mut part = vec![0; usize::from(segment.len)];
            self.engine.arena().copy_out(segment.frame, usize::from(segment.offset), &mut part);
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    fn whole(&self, path: &str) -> Result<Vec<u8>, VfsError> {
        let file = self.open(path)?;
        let (mut bytes, len) = (Vec::new(), file.content().len());
        while (bytes.len() as u64) < len {
            bytes.extend(self.read(&file, bytes.len() as u64, 128 << 10)?);
        }
        Ok(bytes)
    }

    /// Lists a directory, with each name looked up and forgotten if `plus`.
    fn list(&self, path: &str, plus: bool) -> Vec<(String, Option<FileKind>, u64)> {
        let (node, _) = if path.is_empty() { (ROOT, None) } else { (self.find(path).unwrap().0, Some(())) };
        let directory = self.volume.opendir(&self.me, node).unwrap();
        let listed = self.walk(&directory, 0, usize::MAX, plus);
        drop(directory);
        if node != ROOT {
            self.volume.forget(node, 1);
        }
        listed
    }

    fn walk(
        &self,
        directory: &Arc<dyn VolumeDir>,
        from: u64,
        nr: usize,
        plus: bool,
    ) -> Vec<(String, Option<FileKind>, u64)> {
        let (mut listed, mut offset) = (Vec::new(), from);
        loop {
            let (before, from) = (listed.len(), offset);
            let mut looked_up = Vec::new();
            let mut sink = |entry: &umemcg_vfs::DirEntry<'_>| {
                // As small as an answer of the kernel's.
                if listed.len() - before == 40 || listed.len() == nr {
                    return false;
                }
                listed.push((entry.name.to_str().unwrap().to_owned(), entry.kind, entry.next_offset));
                looked_up.extend(entry.entry.map(|entry| entry.node));
                offset = entry.next_offset;
                true
            };
            match plus {
                true => directory.readdirplus(&self.me, from, &mut sink).unwrap(),
                false => directory.readdir(from, &mut sink).unwrap(),
            }
            looked_up.iter().for_each(|&node| self.volume.forget(node, 1));
            if listed.len() == before || listed.len() == nr {
                return listed;
            }
        }
    }

    fn names(&self, path: &str) -> Vec<String> {
        let listed = self.list(path, true).into_iter().map(|(name, ..)| name);
        listed.filter(|name| name != "." && name != "..").collect()
    }
}

fn clone(error: &VfsError) -> VfsError {
    error.errno().into()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 5) as u8 ^ seed).collect()
}

#[test]
fn keys_are_paths() {
    let w = World::new(Freshness::CloseToOpen);
    for key in ["a", "d/e/f", "d/g", "marked/", "z.txt"] {
        w.bucket.put(key, key);
    }
    assert_eq!(w.names(""), ["a", "d", "marked", "z.txt"]);
    assert_eq!(w.names("d"), ["e", "g"]);
    assert!(w.names("marked").is_empty(), "it stands for itself");
    assert_eq!(w.whole("d/e/f").unwrap(), b"d/e/f");
    let (node, attr) = w.find("d/e").unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o040_755, 7, 8));
    assert_eq!(w.volume.path_of(node).unwrap().to_str(), Some("d/e"));
    w.volume.forget(node, 1);
    assert_eq!(w.find("d/x").unwrap_err().errno(), Errno::NOENT);
    assert_eq!(w.find("a/x").unwrap_err().errno(), Errno::NOTDIR);
    let long = "n".repeat(256);
    assert_eq!(w.find(&long).unwrap_err().errno(), Errno::NAMETOOLONG);
    let (inside, again) = (w.list("d", false), w.list("d", true));
    assert_eq!(inside, again, "with attributes or without");
    assert_eq!(w.volume.nr_nodes(), 3, "what was read is kept, and the way to it");
}

#[test]
fn what_is_no_path_is_hidden_and_told() {
    let w = World::new(Freshness::CloseToOpen);
    for key in ["a", "a-b", "a/b", "a0", "x//y", "fine"] {
        w.bucket.put(key, "1");
    }
    assert_eq!(w.names(""), ["a", "a-b", "a0", "fine", "x"]);
    assert!(w.names("x").is_empty());
    let VolumeKind::Objects(state) = w.volume.kind() else { panic!("another kind") };
    assert_eq!(state.hidden_keys, ["a/", "x//"]);
    assert_eq!(w.find("a").unwrap().1.mode, 0o100_644, "looked up, it is the same as listed");
}

#[test]
fn an_empty_object_marks_a_directory_of_its_name() {
    let w = World::new(Freshness::CloseToOpen);
    for key in ["m", "m/", "m/deep", "mm", "mm/m", "mm/m/deep", "empty", "none"] {
        w.bucket.put(key, "");
    }
    // Parts of the listing end before the directories.
    for (key, nr) in [("far", 999), ("near", 2000), ("none", 3000)] {
        (0..nr).for_each(|nr| w.bucket.put(&format!("p/{key}-{nr:04}"), "1"));
        w.bucket.put(&format!("p/{key}"), "");
    }
    w.bucket.put("p/far/deep", "1");
    w.bucket.put("p/near/deep", "1");
    for plus in [false, true] {
        let directories = |path: &str| {
            let listed = w.list(path, plus).into_iter();
            let directories = listed.filter(|(_, kind, _)| *kind == Some(FileKind::Directory));
            directories.map(|(name, ..)| name).collect::<Vec<_>>()
        };
        assert_eq!(directories(""), [".", "..", "m", "mm", "p"]);
        assert_eq!(directories("p"), [".", "..", "far", "near"]);
        assert_eq!(directories("mm"), [".", "..", "m"]);
    }
    let mut names = w.names("p");
    assert_eq!(names.len(), 999 + 2000 + 3000 + 3);
    names.dedup();
    assert_eq!(names.len(), 999 + 2000 + 3000 + 3, "each once");
    for (path, mode) in [("m", 0o040_755), ("mm/m", 0o040_755), ("p/far", 0o040_755), ("p/none", 0o100_644)] {
        assert_eq!(w.find(path).unwrap().1.mode, mode, "{path}");
    }
    assert_eq!(w.whole("empty").unwrap(), b"");
    assert_eq!(w.whole("p/near/deep").unwrap(), b"1");
    let VolumeKind::Objects(state) = w.volume.kind() else { panic!("another kind") };
    assert!(state.hidden_keys.is_empty(), "{:?}", state.hidden_keys);
}

#[test]
fn a_listing_comes_in_parts_and_asks_for_no_attributes() {
    let w = World::new(Freshness::CloseToOpen);
    (0..3_500).for_each(|nr| w.bucket.put(&format!("d/{nr:05}"), "1"));
    let (node, _) = w.find("d").unwrap();
    let before = w.bucket.asked();
    let directory = w.volume.opendir(&w.me, node).unwrap();
    let all = w.walk(&directory, 0, usize::MAX, true);
    assert_eq!(all.len(), 3_502);
    let after = w.bucket.asked();
    assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (0, 0, 4));
    // Any position again: forward from where the handle is, and back.
    for from in [2_000, 2_500, 1_900, 10, 0] {
        let (_, _, offset) = all[from];
        assert_eq!(w.walk(&directory, offset, 5, false), all[from + 1..from + 6]);
    }
    // What was just listed is believed, name by name.
    let before = w.bucket.asked();
    let listed = w.walk(&directory, 0, 100, false);
    drop(listed);
    assert_eq!(w.bucket.asked().1, before.1);
    drop(directory);
    w.volume.forget(node, 1);
}

/// Asserts that something happened as expected once: answers are believed for a time, and a thread
/// that is off its processor for as long asks again.
#[track_caller]
fn assert_promptly<T: PartialEq + std::fmt::Debug>(attempt: impl Fn() -> (T, T)) {
    let mut differing = Vec::new();
    for _ in 0..20 {
        let (happened, expected) = attempt();
        if happened == expected {
            return;
        }
        differing.push(happened);
    }
    panic!("never as expected: {differing:?}");
}

#[test]
fn a_stream_is_read_in_large_parts() {
    let bytes = pattern(40 << 20, 3);
    assert_promptly(|| {
        let w = World::new(Freshness::CloseToOpen);
        w.bucket.put("big", bytes.clone());
        assert!(w.whole("big").unwrap() == bytes);
        let (gets, heads, lists) = w.bucket.asked();
        assert!(gets <= 24, "{gets} requests for 40 MiB");
        assert!(w.whole("big").unwrap() == bytes);
        let again = w.bucket.asked();
        assert_eq!((again.0, again.2), (gets, 1), "all of it is cached");
        // One list at the mount.
        ((heads, lists, again.1), (1, 1, 2))
    });
}

#[test]
fn a_random_read_asks_for_what_it_reads() {
    let w = World::new(Freshness::Immutable);
    let bytes = pattern(16 << 20, 9);
    w.bucket.put("big", bytes.clone());
    let file = w.open("big").unwrap();
    for at in [3u64, 700, 42, 4_000, 42] {
        let offset = at * 4096 + 17;
        assert_eq!(w.read(&file, offset, 100).unwrap(), &bytes[offset as usize..][..100]);
    }
    assert_eq!(w.bucket.asked().0, 4);
    assert_eq!(file.content().nr_cached_pages(), 4, "and nothing ahead of it");
}

#[test]
fn no_read_mixes_two_versions() {
    let w = World::new(Freshness::CloseToOpen);
    let (old, new) = (pattern(4 << 20, 1), pattern(3 << 20, 2));
    w.bucket.put("o", old.clone());
    let file = w.open("o").unwrap();
    assert_eq!(w.read(&file, 0, 100).unwrap(), &old[..100]);
    w.bucket.put("o", new.clone());
    assert_eq!(w.read(&file, 0, 100).unwrap(), &old[..100], "cached");
    assert_eq!(w.read(&file, 3 << 20, 100).unwrap_err().errno(), Errno::STALE);
    assert_eq!(file.getattr().unwrap().size, 4 << 20);
    assert!(w.whole("o").unwrap() == new, "the next open sees it");
    assert_eq!(w.read(&file, 3 << 20, 100).unwrap_err().errno(), Errno::STALE);
    // Gone under an open file.
    let file = w.open("o").unwrap();
    w.bucket.delete("o");
    assert_eq!(w.read(&file, 0, 100).unwrap(), &new[..100]);
    assert_eq!(w.open("o").unwrap_err().errno(), Errno::NOENT);
    w.bucket.put("o/below", "1");
    let believed = Duration::from_millis(1_100);
    std::thread::sleep(believed);
    assert_eq!(w.find("o").unwrap().1.mode, 0o040_755, "something else has its name");
}

#[test]
fn a_node_stands_for_one_version() {
    let w = World::new(Freshness::CloseToOpen);
    w.bucket.put("o", pattern(5000, 1));
    let (old, _) = w.find("o").unwrap();
    let file = w.volume.open(&w.me, old, OFlags::RDONLY).unwrap();
    w.bucket.put("o", pattern(9000, 2));
    assert_eq!(w.volume.open(&w.me, old, OFlags::RDONLY).unwrap_err().errno(), Errno::STALE);
    assert_eq!(w.volume.getattr(old).unwrap_err().errno(), Errno::STALE, "its attributes are no more");
    let (new, attr) = w.find("o").unwrap();
    assert!(new != old && attr.size == 9000);
    assert_eq!(file.getattr().unwrap().size, 5000, "those of what is open");
    drop(file);
    w.volume.forget(old, 1);
    w.volume.forget(new, 1);
    assert_eq!(w.volume.nr_nodes(), 0);
}

#[test]
fn a_read_that_finds_another_version_ends_what_was_believed() {
    for freshness in [Freshness::Immutable, Freshness::Ttl(Duration::from_secs(3600))] {
        let w = World::new(freshness);
        let (old, new) = (pattern(4 << 20, 1), pattern(4 << 20, 2));
        w.bucket.put("o", old.clone());
        let file = w.open("o").unwrap();
        assert_eq!(w.read(&file, 0, 100).unwrap(), &old[..100]);
        w.bucket.put("o", new.clone());
        assert!(w.read(&w.open("o").unwrap(), 0, 100).unwrap() == old[..100], "believed");
        assert_eq!(w.read(&file, 3 << 20, 100).unwrap_err().errno(), Errno::STALE);
        assert!(w.whole("o").unwrap() == new, "the next open sees it");
    }
}

#[test]
fn an_open_asks_as_often_as_its_freshness_says() {
    for (freshness, expected) in [
        (Freshness::CloseToOpen, 3),
        (Freshness::Ttl(Duration::from_secs(3600)), 1),
        (Freshness::Immutable, 1),
    ] {
        assert_promptly(|| {
            let w = World::new(freshness);
            w.bucket.put("o", "1");
            // The kernel remembers the name meanwhile.
            let (node, _) = w.find("o").unwrap();
            (0..3).for_each(|_| drop(w.volume.open(&w.me, node, OFlags::RDONLY).unwrap()));
            w.volume.forget(node, 1);
            (w.bucket.asked().1, expected)
        });
    }
    // The lookup of another thread is another's.
    let mut w = World::new(Freshness::CloseToOpen);
    w.bucket.put("o", "1");
    let (node, _) = w.find("o").unwrap();
    w.me.thread = 2;
    drop(w.volume.open(&w.me, node, OFlags::RDONLY).unwrap());
    assert_eq!(w.bucket.asked().1, 2);
}

#[test]
fn a_directory_is_believed_as_long_as_what_is_below_it() {
    let ttl = Duration::from_secs(4);
    assert_promptly(|| {
        let w = World::new(Freshness::Ttl(ttl));
        w.bucket.put("d/a", "1");
        let (node, _) = w.find("d").unwrap();
        let before = w.bucket.asked();
        std::thread::sleep(ttl * 5 / 8);
        let below = w.volume.lookup(&w.me, node, OsStr::new("a")).unwrap();
        std::thread::sleep(ttl * 5 / 8);
        w.find("d").unwrap();
        let after = w.bucket.asked();
        w.volume.forget(below.node, 1);
        w.volume.forget(node, 2);
        // For the name below alone.
        ((after.1 - before.1, after.2 - before.2), (1, 0))
    });
}

#[test]
fn names_are_charged_and_come_back() {
    let w = World::new(Freshness::CloseToOpen);
    (0..200).for_each(|nr| w.bucket.put(&format!("d/{nr}"), "1"));
    let before = w.usage();
    let nodes: Vec<_> = (0..200).map(|nr| w.find(&format!("d/{nr}")).unwrap().0).collect();
    assert!(w.usage() - before >= 201 * 700);
    assert_eq!(w.volume.nr_nodes(), 201);
    nodes.iter().for_each(|&node| w.volume.forget(node, 1));
    assert_eq!(w.volume.nr_nodes(), 0);
    assert!(w.usage() <= before + LISTS_BYTES);
}

#[test]
fn a_listing_of_any_length_stays_within_its_group() {
    let w = World::new(Freshness::CloseToOpen);
    (0..30_000).for_each(|nr| w.bucket.put(&format!("{nr:06}"), ""));
    w.engine.set_max(w.group(), 1 << 20);
    assert_eq!(w.list("", true).len(), 30_002);
    assert!(w.group().peak_bytes() <= 1 << 20);
    assert_eq!(w.volume.nr_nodes(), 0);
    assert!(w.usage() <= LISTS_BYTES);
}

#[test]
fn the_text_of_a_listing_and_long_keys_are_charged() {
    let w = World::new(Freshness::CloseToOpen);
    let long = [["x"; 250].concat(), ["y"; 250].concat(), ["z"; 250].concat()].join("/");
    w.bucket.put("o", "1");
    w.bucket.put(&long, "1");
    let before = w.usage();
    w.list("", true);
    assert!(w.group().peak_bytes() >= before + (512 << 10), "while it is read");
    let cost_of_open = |key: &str| {
        let (node, _) = w.find(key).unwrap();
        let before = w.usage();
        let file = w.volume.open(&w.me, node, OFlags::RDONLY).unwrap();
        (w.usage() - before, file)
    };
    let (short, long) = (cost_of_open("o"), cost_of_open(&long));
    assert!(long.0 >= short.0 + 750, "{} and {}", long.0, short.0);
}

#[test]
fn a_failing_store_is_an_error_and_nothing_more() {
    let mut w = World::new(Freshness::CloseToOpen);
    w.bucket.put("o", pattern(1 << 20, 5));
    let file = w.open("o").unwrap();
    let failures = [
        (BucketError::Denied("no".into()), Errno::ACCESS),
        (BucketError::Unavailable("down".into()), Errno::IO),
        (BucketError::Corrupt("?".into()), Errno::IO),
    ];
    for (failure, errno) in failures {
        w.bucket.fail_with(Some(failure));
        // The lookup of another thread is not this one's.
        w.me.thread += 1;
        assert_eq!(w.read(&file, 0, 100).unwrap_err().errno(), errno);
        assert_eq!(w.find("other").unwrap_err().errno(), errno);
        assert_eq!(w.open("o").unwrap_err().errno(), errno);
        w.bucket.fail_with(None);
    }
    assert_eq!(w.read(&file, 0, 100).unwrap(), &pattern(1 << 20, 5)[..100]);
    drop(file);
    assert!(ObjectVolume::open(&w.engine, &failing(), 0).is_err(), "told at the mount");
}

#[test]
fn what_comes_damaged_is_asked_for_again_then_eio() {
    let w = World::new(Freshness::CloseToOpen);
    let bytes = pattern(300_000, 5);
    w.bucket.put("once", bytes.clone());
    w.bucket.put("always", bytes.clone());
    let gets = || w.bucket.gets.load(Ordering::Relaxed);
    w.bucket.damages.store(1, Ordering::Relaxed);
    assert!(w.whole("once").unwrap() == bytes);
    assert_eq!(gets(), 2);
    w.bucket.damages.store(u64::MAX, Ordering::Relaxed);
    let file = w.open("always").unwrap();
    let before = gets();
    assert_eq!(w.read(&file, 0, 100).unwrap_err().errno(), Errno::IO);
    assert_eq!(gets() - before, 2, "no part is asked for, of which nothing could be told");
    w.bucket.damages.store(0, Ordering::Relaxed);
    assert!(w.whole("always").unwrap() == bytes, "nothing of it was kept");
}

fn failing() -> ObjectConfig {
    let bucket = MemoryBucket::default();
    bucket.fail_with(Some(BucketError::Unavailable("down".into())));
    ObjectConfig {
        bucket: Arc::new(bucket),
        freshness: Freshness::CloseToOpen,
        stores_attributes: false,
        uid: 0,
        gid: 0,
        staging: None,
        streams: false,
        notes: None,
    }
}

#[test]
fn nothing_is_written() {
    let w = World::new(Freshness::CloseToOpen);
    w.bucket.put("o", "1");
    let (node, _) = w.find("o").unwrap();
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        assert_eq!(w.volume.open(&w.me, node, flags).unwrap_err().errno(), Errno::ROFS);
    }
    w.volume.forget(node, 1);
}

#[test]
fn a_directory_that_is_read_slowly_costs_no_look_ups() {
    let w = World::new(Freshness::CloseToOpen);
    (0..100).for_each(|nr| w.bucket.put(&format!("{nr:02}"), "x"));
    w.bucket.put("zz/elsewhere", "x");
    loop {
        let begun = Instant::now();
        let directory = w.volume.opendir(&w.me, ROOT).unwrap();
        let (_, _, from) = *w.walk(&directory, 0, 40, true).last().unwrap();
        // Until what was told of a name is not believed any more: of one that is not listed there.
        let look = || w.volume.forget(w.find("zz/elsewhere").unwrap().0, 1);
        look();
        let nr_heads = w.bucket.asked().1;
        while w.bucket.asked().1 == nr_heads {
            std::thread::sleep(Duration::from_millis(1));
            look();
        }
        let (mut nr, mut found) = (0, Vec::new());
        let mut sink = |entry: &umemcg_vfs::DirEntry<'_>| {
            nr += 1;
            found.extend(entry.entry.map(|entry| entry.node));
            true
        };
        directory.readdirplus(&w.me, from, &mut sink).unwrap();
        found.iter().for_each(|&node| w.volume.forget(node, 1));
        assert_eq!(nr, 63, "without the dots");
        if found.len() == nr {
            return;
        }
        assert!(begun.elapsed() >= Duration::from_secs(10), "{} of {nr} come with all facts", found.len());
    }
}

#[test]
fn a_sync_takes_nothing_for_done_that_goes_on() {
    let (volumes, w) = (Volumes::many(), World::new(Freshness::CloseToOpen));
    let member = volumes.add("a", |_| Ok(Arc::clone(&w.volume) as _)).unwrap();
    let first = member.begin_sync().expect("nothing is known of a new volume");
    let second = member.begin_sync().expect("the first goes on");
    first.finish();
    second.finish();
    assert!(member.begin_sync().is_none(), "nothing has changed");
    member.touch();
    drop(member.begin_sync().expect("something has changed"));
    member.begin_sync().map(Syncing::finish).expect("the last one has failed");
    assert!(member.begin_sync().is_none());
}
