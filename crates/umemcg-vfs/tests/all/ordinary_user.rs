//! The daemon of an ordinary user: no handles, nothing to give away, the host's permissions apply
//! to it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::rerun::{is_rerun, rerun};
use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{
    Attr, Attributes, Caller, Create, Lookup, Names, OFlags, Open, RenameFlags, Resolve, SetAttr, Volume,
    Xattrs,
};

const NOBODY: u32 = 65_534;

/// Runs a claim as an ordinary user, with a directory of his own in which `prepare` has left
/// something as root.
fn as_user(claim: &str, prepare: impl FnOnce(&Path)) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {claim}: needs root to become another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    own(dir.path());
    prepare(dir.path());
    let claim = format!("ordinary_user::{claim}");
    rerun(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], &claim, dir.path());
}

fn fixture() -> Fixture {
    let mut v = Fixture::new();
    v.root = Caller { uid: NOBODY, gid: NOBODY, ..v.root };
    v
}

#[test]
fn an_ordinary_user_has_a_whole_volume() {
    as_user("whole_volume", |_| {});
}

#[test]
#[ignore = "run again as an ordinary user by the claim above"]
fn whole_volume() {
    if !is_rerun() {
        return;
    }
    let v = fixture();
    assert_eq!(v.vfs.resolve(), Resolve::Names);
    let dir = v.mkdir(ROOT, "d");
    let (entry, file) = v.create(dir.node, "f");
    assert_eq!((entry.attr.uid, entry.attr.gid, entry.attr.mode & 0o7777), (NOBODY, NOBODY, 0o644));
    v.write(&file, 0, b"content");
    let accepted = v.attr("d/f");
    drop(file);
    v.vfs.syncfs().unwrap();
    assert_eq!(v.attr("d/f"), Attr { blocks: v.attr("d/f").blocks, ..accepted });
    v.vfs.link(&v.root, entry.node, ROOT, name("g")).unwrap();
    let link = v.vfs.symlink(&v.root, ROOT, name("l"), name("d/f")).unwrap();
    v.vfs.link(&v.root, link.node, ROOT, name("l2")).unwrap();
    v.vfs.mknod(&v.root, ROOT, name("p"), 0o010_600, 0).unwrap();
    v.vfs.rename(&v.root, dir.node, name("f"), ROOT, name("g2"), RenameFlags::NOREPLACE).unwrap();
    v.set(entry.node, SetAttr { mode: Some(0o4711), size: Some(4), ..SetAttr::default() }).unwrap();
    assert_eq!(v.cat("g2"), b"cont");
    v.vfs
        .setxattr(&v.root, entry.node, name("user.x"), b"1", umemcg_vfs::XattrFlags::empty(), false)
        .unwrap();
    assert_eq!(v.ls(ROOT), ["d", "g", "g2", "l", "l2", "p"]);
    assert_eq!(errno(v.set(entry.node, SetAttr { uid: Some(0), ..SetAttr::default() })), Errno::PERM);
    assert_eq!(errno(v.vfs.mknod(&v.root, ROOT, name("dev"), 0o020_600, 259)), Errno::PERM);
    for n in ["g", "g2", "l", "l2", "p"] {
        v.vfs.unlink(&v.root, ROOT, name(n)).unwrap();
    }
    assert_eq!(v.vfs.getattr(entry.node).unwrap().nlink, 0);
}

#[test]
fn what_others_make_stays_the_daemons_and_never_runs_as_him() {
    as_user("others_objects", |_| {});
}

#[test]
#[ignore = "run again as an ordinary user by the claim above"]
fn others_objects() {
    if !is_rerun() {
        return;
    }
    let v = fixture();
    let other = v.user(1234, 1234);
    let (entry, _file) = v.vfs.create(&other, ROOT, name("f"), 0o6755, OFlags::RDWR).unwrap();
    assert_eq!((entry.attr.uid, entry.attr.mode & 0o7777), (NOBODY, 0o755));
    let mine = v.vfs.create(&v.root, ROOT, name("g"), 0o6755, OFlags::RDWR).unwrap().0;
    assert_eq!(mine.attr.mode & 0o7777, 0o6755);
}

#[test]
fn the_hosts_permissions_hold_for_the_daemon() {
    as_user("hosts_permissions", |dir| {
        // The volume is a directory below, since root's things in the user's own could be renamed
        // by him.
        let put = |path: &str, text: &str, mode: u32| {
            let path = dir.join(path);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        put("secret", "secret", 0o600);
        put("readable", "readable", 0o644);
        put("writable", "writable", 0o666);
        std::fs::create_dir(dir.join("searchable")).unwrap();
        put("searchable/inside", "inside", 0o644);
        std::fs::set_permissions(dir.join("searchable"), std::fs::Permissions::from_mode(0o711)).unwrap();
    });
}

#[test]
#[ignore = "run again as an ordinary user by the claim above"]
fn hosts_permissions() {
    if !is_rerun() {
        return;
    }
    let dir = std::env::current_dir().unwrap();
    let v = fixture();
    let vfs = umemcg_vfs::HostVolume::new(&v.engine, umemcg_vfs::VolumeConfig::new(&dir)).unwrap();
    let find = |n: &str| vfs.lookup(&v.root, ROOT, name(n)).unwrap();
    let open = |n: &str, flags| vfs.open(&v.root, find(n).node, flags);
    assert_eq!(errno(open("secret", OFlags::RDONLY)), Errno::ACCESS);
    assert!(open("readable", OFlags::RDONLY).is_ok());
    assert_eq!(errno(open("readable", OFlags::RDWR)), Errno::ACCESS);
    let chmod = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    assert_eq!(errno(vfs.setattr(&v.root, find("readable").node, &chmod)), Errno::PERM);

    // Another user's file that the daemon may write: its times are not ours to set back.
    let file = open("writable", OFlags::RDWR).unwrap();
    file.write(&v.root.group, 0, b"WRIT", false).unwrap();
    file.fsync(false).unwrap();
    let host = std::fs::metadata(dir.join("writable")).unwrap();
    let shown = file.getattr().unwrap();
    assert_eq!((shown.mtime.seconds, i64::from(shown.mtime.nanoseconds)), (host.mtime(), host.mtime_nsec()));
    assert_eq!(std::fs::read(dir.join("writable")).unwrap(), b"WRITable");

    let searchable = find("searchable").node;
    assert_eq!(vfs.lookup(&v.root, searchable, name("inside")).unwrap().attr.size, 6);
    assert_eq!(errno(vfs.opendir(&v.root, searchable)), Errno::ACCESS);
    assert_eq!(errno(vfs.create(&v.root, searchable, name("x"), 0o644, OFlags::RDWR)), Errno::ACCESS);
}

#[test]
fn a_volume_that_the_daemon_may_only_search_is_served_by_names() {
    as_user("search_only", |dir| {
        let volume = dir.join("volume");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(volume.join("f"), "known by name").unwrap();
        std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o711)).unwrap();
    });
}

#[test]
#[ignore = "run again as an ordinary user by the claim above"]
fn search_only() {
    if !is_rerun() {
        return;
    }
    let v = fixture();
    let config = umemcg_vfs::VolumeConfig::new(std::env::current_dir().unwrap().join("volume"));
    let vfs = umemcg_vfs::HostVolume::new(&v.engine, config).unwrap();
    let node = vfs.lookup(&v.root, ROOT, name("f")).unwrap().node;
    let file = vfs.open(&v.root, node, OFlags::RDONLY).unwrap();
    assert_eq!(v.read(&file, 0, 100), b"known by name");
    assert_eq!(errno(vfs.opendir(&v.root, ROOT)), Errno::ACCESS);
    vfs.statfs().unwrap();
}

#[test]
fn write_back_of_an_ordinary_users_daemon_leaves_set_id_bits() {
    as_user("set_id_bits", |_| {});
}

#[test]
#[ignore = "run again as an ordinary user by the claim above"]
fn set_id_bits() {
    if !is_rerun() {
        return;
    }
    let v = fixture();
    let (entry, file) = v.create(ROOT, "f");
    v.write(&file, 0, b"before");
    v.set(entry.node, SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    file.fsync(false).unwrap();
    assert_eq!(std::fs::metadata(v.host("f")).unwrap().mode() & 0o7777, 0o6755);
    assert_eq!(v.attr("f").mode & 0o7777, 0o6755);
    file.write(&v.root.group, 0, b"after", true).unwrap();
    assert_eq!(v.attr("f").mode & 0o7777, 0o755, "a write takes them at once");
}
