//! Many threads on one volume whose pool is small: nothing is lost, nothing is left over, no thread
//! waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg::{Engine, EngineConfig};
use umemcg_vfs::{
    Attributes, Create, FallocateFlags, HostVolume, Lookup, Names, OFlags, Open, RenameFlags, Resolve,
    SetAttr, Volume, VolumeConfig,
};

fn small(resolve: Resolve) -> Fixture {
    let mut v = Fixture::new();
    v.engine = Engine::new(EngineConfig::new(4 << 20)).unwrap();
    let mut config = VolumeConfig::new(v.dir.path());
    config.resolve = resolve;
    // In place of the fixture's own.
    config.is_exclusive = false;
    config.max_idle_descriptors = 16;
    config.max_kept_files = 8;
    v.vfs = HostVolume::new(&v.engine, config).unwrap();
    v.root.group = Arc::clone(v.engine.root());
    v
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Any operation on a few names that all threads share; errors are expected, panics and hangs are
/// not.
fn stir(v: &Fixture, random: &mut Random) {
    let names = ["a", "b", "c", "d"];
    let vfs = &v.vfs;
    let mut held = Vec::new();
    let mut at = ROOT;
    for _ in 0..random.below(3) {
        let part = names[random.below(4) as usize];
        match vfs.lookup(&v.root, at, name(part)) {
            Ok(entry) => {
                held.push(entry.node);
                at = entry.node;
            }
            Err(_) => break,
        }
    }
    let n = name(names[random.below(4) as usize]);
    let other = name(names[random.below(4) as usize]);
    let entry = match random.below(12) {
        0 => vfs.mkdir(&v.root, at, n, 0o755).ok(),
        1 | 2 => vfs.create(&v.root, at, n, 0o644, OFlags::RDWR).ok().map(|(entry, file)| {
            let _ = file.write(&v.root.group, random.below(100_000), &[1; 5000], true);
            entry
        }),
        3 => {
            let _ = vfs.unlink(&v.root, at, n);
            None
        }
        4 => {
            let _ = vfs.rmdir(&v.root, at, n);
            None
        }
        5 => {
            let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::NOREPLACE];
            let _ = vfs.rename(&v.root, at, n, ROOT, other, flags[random.below(3) as usize]);
            None
        }
        6 => vfs.lookup(&v.root, at, n).ok().and_then(|entry| {
            held.push(entry.node);
            vfs.link(&v.root, entry.node, ROOT, other).ok()
        }),
        7 => vfs.lookup(&v.root, at, n).ok().inspect(|entry| {
            if let Ok(file) = vfs.open(&v.root, entry.node, OFlags::RDWR | OFlags::TRUNC) {
                let _ = file.write(&v.root.group, 0, &[2; 20_000], false);
                let _ = file.fallocate(file.group(), FallocateFlags::ZERO_RANGE, 100, 9000, false);
                let _ = file.fsync(true);
            }
        }),
        8 => vfs.lookup(&v.root, at, n).ok().inspect(|entry| {
            let change =
                SetAttr { size: Some(random.below(50_000)), mode: Some(0o600), ..SetAttr::default() };
            let _ = vfs.setattr(&v.root, entry.node, &change);
        }),
        9 => vfs.lookup(&v.root, at, n).ok().inspect(|entry| {
            if let Ok(file) = vfs.open(&v.root, entry.node, OFlags::RDONLY) {
                let _ = file.read(&v.root.group, 0, 1 << 20);
            }
        }),
        10 => {
            if let Ok(handle) = vfs.opendir(&v.root, at) {
                let mut found = Vec::new();
                let _ = handle.readdirplus(&v.root, 0, &mut |entry| {
                    found.extend(entry.entry);
                    true
                });
                held.extend(found.into_iter().map(|entry| entry.node));
            }
            None
        }
        _ => {
            let _ = vfs.getattr(at);
            let _ = vfs.path_of(at);
            None
        }
    };
    held.extend(entry.map(|entry| entry.node));
    for node in held {
        vfs.forget(node, 1);
    }
}

/// Writes a pattern to a file of its own in pieces and checks it, again and again, while the others
/// stir.
fn keep_checking(v: &Fixture, id: u64, until: &AtomicBool) {
    let (entry, _) = v.vfs.create(&v.root, ROOT, name(&format!("mine-{id}")), 0o644, OFlags::RDWR).unwrap();
    let mut random = Random(id);
    let mut model = vec![0u8; 600_000];
    let mut len = 0;
    while !until.load(Ordering::Relaxed) {
        let file = v.open(entry.node, OFlags::RDWR);
        let at = random.below(500_000) as usize;
        let piece = vec![random.below(256) as u8; 1 + random.below(60_000) as usize];
        v.write(&file, at as u64, &piece);
        model[at..at + piece.len()].copy_from_slice(&piece);
        len = len.max(at + piece.len());
        if random.below(8) == 0 {
            file.fsync(random.below(2) == 0).unwrap();
        }
        let from = random.below(500_000);
        let bytes = v.read(&file, from, 80_000);
        let end = len.min(from as usize + 80_000);
        assert_eq!(bytes, model.get(from as usize..end).unwrap_or_default(), "file {id} from {from}");
        let attr = file.getattr().unwrap();
        assert_eq!(attr.size, len as u64);
    }
    v.vfs.forget(entry.node, 1);
    v.vfs.syncfs().unwrap();
    assert_eq!(std::fs::read(v.host(&format!("mine-{id}"))).unwrap(), model[..len]);
}

#[test]
fn threads_on_the_same_names_leave_a_whole_tree() {
    for resolve in crate::common::RESOLVES {
        let v = small(resolve);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let checkers: Vec<_> = (0..2u64)
                .map(|id| {
                    let (v, done) = (&v, &done);
                    scope.spawn(move || keep_checking(v, id + 1, done))
                })
                .collect();
            let stirrers: Vec<_> = (0..3u64)
                .map(|seed| {
                    let v = &v;
                    scope.spawn(move || {
                        let mut random = Random(seed + 100);
                        for _ in 0..1500 {
                            stir(v, &mut random);
                        }
                    })
                })
                .collect();
            for stirrer in stirrers {
                stirrer.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
            for checker in checkers {
                checker.join().unwrap();
            }
        });
        v.vfs.syncfs().unwrap();
        let usage = || {
            v.root.group.drain_stocks();
            v.root.group.usage_bytes()
        };
        assert!(usage() <= 4 << 20);
        // The view and the host agree.
        compare(&v, ROOT, v.dir.path());
        // Files are kept for their pages, and directories for the files below them.
        let deadline = Instant::now() + Duration::from_secs(30);
        while v.vfs.nr_inodes() > 1 {
            v.engine.drop_caches(umemcg::DropCaches::Both);
            assert!(Instant::now() < deadline, "{} inodes are left", v.vfs.nr_inodes());
            std::thread::yield_now();
        }
    }
}

fn compare(v: &Fixture, node: umemcg_vfs::NodeId, path: &std::path::Path) {
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(v.ls(node), names);
    for n in names {
        let entry = v.vfs.lookup(&v.root, node, name(&n)).unwrap();
        let below = path.join(&n);
        let meta = std::fs::symlink_metadata(&below).unwrap();
        if meta.is_dir() {
            compare(v, entry.node, &below);
        } else if meta.is_file() {
            assert_eq!(entry.attr.size, meta.len(), "{}", below.display());
            let file = v.open(entry.node, OFlags::RDONLY);
            assert_eq!(v.read(&file, 0, 1 << 20), std::fs::read(&below).unwrap(), "{}", below.display());
        }
        v.vfs.forget(entry.node, 1);
    }
}

#[test]
fn lookups_and_forgets_of_one_name_never_miscount() {
    let v = small(Resolve::Auto);
    std::fs::create_dir(v.host("d")).unwrap();
    std::fs::write(v.host("d/f"), "x").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let dir = v.vfs.lookup(&v.root, ROOT, name("d")).unwrap().node;
                    let file = v.vfs.lookup(&v.root, dir, name("f")).unwrap().node;
                    v.vfs.forget(dir, 1);
                    assert_eq!(v.vfs.getattr(file).unwrap().size, 1);
                    v.vfs.forget(file, 1);
                }
            });
        }
    });
    assert_eq!(v.vfs.nr_inodes(), 1);
    assert_eq!(errno(v.walk("d/g")), Errno::NOENT);
}

#[test]
fn the_last_reference_to_a_volume_gives_everything_back() {
    let v = small(Resolve::Auto);
    let group = Arc::clone(&v.root.group);
    let before = {
        group.drain_stocks();
        group.usage_bytes()
    };
    for n in 0..50 {
        let (_, file) = v.create(ROOT, &format!("f{n}"));
        v.write(&file, 0, &[1; 10_000]);
    }
    v.vfs.syncfs().unwrap();
    group.drain_stocks();
    assert!(group.usage_bytes() > before);
    let Fixture { vfs, engine, dir, root } = v;
    drop(vfs);
    // An empty list of the volume's names stays until the next round of the shrinkers.
    engine.drop_caches(umemcg::DropCaches::Objects);
    // The flusher lets go of a file when it next looks at it.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        group.drain_stocks();
        if group.usage_bytes() == before {
            break;
        }
        assert!(Instant::now() < deadline, "{} bytes are left, {before} at the start", group.usage_bytes());
        std::thread::yield_now();
    }
    drop((root, engine, dir));
}

#[test]
fn open_files_may_outlive_everything_else() {
    let v = small(Resolve::Auto);
    let (entry, file) = v.create(ROOT, "f");
    v.write(&file, 0, &[1; 10_000]);
    let handle = v.vfs.opendir(&v.root, ROOT).unwrap();
    let group = Arc::clone(&v.root.group);
    let dir = {
        let Fixture { vfs, engine, dir, root } = v;
        drop((vfs, engine, root));
        dir
    };
    assert_eq!(file.read(&group, 9_999, 10).unwrap().to_vec(), [1]);
    drop(group);
    drop(handle);
    drop(file);
    assert!(dir.path().join("f").exists());
    let _ = entry;
}
