//! File systems that are full, read-only, of another kind, or mounted where they should not be. In
//! mounts of our own.

use std::path::Path;
use std::process::Command;

use crate::common::rerun::{is_rerun, rerun};
use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{
    Attributes, Create, HostVolume, IoMode, Lookup, Names, OFlags, Open, Resolve, SetAttr, Volume,
    VolumeConfig, Whence,
};

fn with_mounts(claim: &str) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {claim}: needs root to mount");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let claim = format!("mounts::{claim}");
    rerun(&["unshare", "--mount", "--propagation", "private"], &claim, dir.path());
}

fn mount(arguments: &[&str], at: &Path) {
    std::fs::create_dir_all(at).unwrap();
    assert!(Command::new("mount").args(arguments).arg(at).status().unwrap().success(), "{arguments:?}");
}

fn here(path: &str) -> std::path::PathBuf {
    std::env::current_dir().unwrap().join(path)
}

fn volume(v: &Fixture, dir: &Path) -> std::sync::Arc<HostVolume> {
    HostVolume::new(&v.engine, VolumeConfig::new(dir)).unwrap()
}

#[test]
fn a_full_file_system_loses_nothing_and_says_so_once() {
    with_mounts("full");
}

#[test]
#[ignore = "run again with mounts of its own by the claim above"]
fn full() {
    if !is_rerun() {
        return;
    }
    let v = Fixture::new();
    mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], &here("small"));
    let vfs = volume(&v, &here("small"));
    let pattern: Vec<u8> = (0..3_000_000u32).map(|n| (n >> 7) as u8).collect();
    let (entry, file) = vfs.create(&v.root, ROOT, name("f"), 0o644, OFlags::RDWR).unwrap();
    for (n, chunk) in pattern.chunks(100_000).enumerate() {
        file.write(&v.root.group, n as u64 * 100_000, chunk, false).unwrap();
    }
    assert_eq!(errno(file.fsync(false)), Errno::NOSPC);
    assert_eq!(vfs.getattr(entry.node).unwrap().size, 3_000_000);
    assert_eq!(v.read(&file, 0, 4_000_000), pattern, "what was accepted is still there");
    let seek = |whence| file.lseek(whence, 5).unwrap();
    assert_eq!((seek(Whence::Data), seek(Whence::Hole)), (5, 3_000_000), "none of it is a hole");
    assert!(vfs.syncfs().is_err());
    // The file lingers after its close, and is written once there is room.
    drop(file);
    vfs.forget(entry.node, 1);
    let again = vfs.lookup(&v.root, ROOT, name("f")).unwrap();
    assert_eq!((again.node, again.attr.size), (entry.node, 3_000_000));
    mount(&["-o", "remount,size=16m"], &here("small"));
    vfs.syncfs().unwrap();
    assert_eq!(std::fs::read(here("small/f")).unwrap(), pattern);
}

#[test]
fn a_read_only_file_system_is_read() {
    with_mounts("read_only");
}

#[test]
#[ignore = "run again with mounts of its own by the claim above"]
fn read_only() {
    if !is_rerun() {
        return;
    }
    let v = Fixture::new();
    std::fs::create_dir_all(here("data/d")).unwrap();
    std::fs::write(here("data/f"), "content").unwrap();
    mount(&["--bind", here("data").to_str().unwrap()], &here("ro"));
    mount(&["-o", "remount,bind,ro"], &here("ro"));
    let vfs = volume(&v, &here("ro"));
    let node = vfs.lookup(&v.root, ROOT, name("f")).unwrap().node;
    let file = vfs.open(&v.root, node, OFlags::RDONLY).unwrap();
    assert_eq!(v.read(&file, 0, 100), b"content");
    let attr = vfs.getattr(node).unwrap();
    let root = &v.root;
    assert_eq!(errno(vfs.open(root, node, OFlags::RDWR)), Errno::ROFS);
    assert_eq!(errno(vfs.open(root, node, OFlags::RDONLY | OFlags::TRUNC)), Errno::ROFS);
    assert_eq!(errno(vfs.create(root, ROOT, name("n"), 0o644, OFlags::RDWR)), Errno::ROFS);
    assert_eq!(errno(vfs.mkdir(root, ROOT, name("n"), 0o755)), Errno::ROFS);
    assert_eq!(errno(vfs.unlink(root, ROOT, name("f"))), Errno::ROFS);
    assert_eq!(errno(vfs.rmdir(root, ROOT, name("d"))), Errno::ROFS);
    assert_eq!(errno(vfs.link(root, node, ROOT, name("n"))), Errno::ROFS);
    let none = umemcg_vfs::RenameFlags::empty();
    assert_eq!(errno(vfs.rename(&v.root, ROOT, name("f"), ROOT, name("g"), none)), Errno::ROFS);
    for change in [
        SetAttr { size: Some(1), ..SetAttr::default() },
        SetAttr { mode: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(1), ..SetAttr::default() },
        SetAttr { mtime: Some(umemcg_vfs::SetTime::Now), ..SetAttr::default() },
    ] {
        assert_eq!(errno(vfs.setattr(root, node, &change)), Errno::ROFS, "{change:?}");
    }
    assert_eq!(vfs.getattr(node).unwrap(), attr, "nothing changed");
    vfs.syncfs().unwrap();
}

#[test]
fn what_is_mounted_inside_is_not_part_of_the_volume() {
    with_mounts("mounted_inside");
}

#[test]
#[ignore = "run again with mounts of its own by the claim above"]
fn mounted_inside() {
    if !is_rerun() {
        return;
    }
    for resolve in [Resolve::Auto, Resolve::Names] {
        let v = Fixture::with(|config| config.resolve = resolve);
        mount(&["-t", "tmpfs", "tmpfs"], &v.host("other"));
        std::fs::create_dir(here("elsewhere")).unwrap();
        std::fs::write(here("elsewhere/f"), "outside").unwrap();
        // The same file system, and still outside.
        mount(&["--bind", here("elsewhere").to_str().unwrap()], &v.host("same"));
        for n in ["other", "same"] {
            assert_eq!(errno(v.walk(n)), Errno::XDEV, "{n}");
            assert_eq!(errno(v.vfs.rmdir(&v.root, ROOT, name(n))), Errno::XDEV, "{n}");
            let moved =
                v.vfs.rename(&v.root, ROOT, name(n), ROOT, name("x"), umemcg_vfs::RenameFlags::empty());
            assert_eq!(errno(moved), Errno::XDEV, "{n}");
        }
        assert_eq!(v.ls(ROOT), ["other", "same"], "the names are there");
        let handle = v.vfs.opendir(&v.root, ROOT).unwrap();
        handle
            .readdirplus(&v.root, 0, &mut |entry| {
                assert!(entry.entry.is_none(), "{:?}", entry.name);
                true
            })
            .unwrap();
        std::fs::remove_dir_all(here("elsewhere")).unwrap();
        for n in ["other", "same"] {
            assert!(Command::new("umount").arg(v.host(n)).status().unwrap().success());
        }
    }
}

#[test]
fn a_memory_file_system_serves_in_every_mode_it_has() {
    with_mounts("memory_file_system");
}

#[test]
#[ignore = "run again with mounts of its own by the claim above"]
fn memory_file_system() {
    if !is_rerun() {
        return;
    }
    let v = Fixture::new();
    mount(&["-t", "tmpfs", "tmpfs"], &here("tmpfs"));
    for mode in [IoMode::Auto, IoMode::Direct, IoMode::DropBehind] {
        for resolve in [Resolve::Auto, Resolve::Names] {
            let config = VolumeConfig { io_mode: mode, resolve, ..VolumeConfig::new(here("tmpfs")) };
            let Ok(vfs) = HostVolume::new(&v.engine, config) else { continue };
            let (entry, file) = vfs.create(&v.root, ROOT, name("f"), 0o644, OFlags::RDWR).unwrap();
            file.write(&v.root.group, 5, &[7; 70_000], false).unwrap();
            drop(file);
            vfs.syncfs().unwrap();
            let file = vfs.open(&v.root, entry.node, OFlags::RDONLY).unwrap();
            file.content().invalidate_clean();
            assert_eq!(v.read(&file, 0, 100_000)[..7], [0, 0, 0, 0, 0, 7, 7], "{mode:?}");
            vfs.unlink(&v.root, ROOT, name("f")).unwrap();
        }
    }
}
