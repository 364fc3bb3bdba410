//! One path through everything, both ways of reaching inodes.

use crate::common::{Fixture, ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{Attributes, Names, OFlags, Open, RenameFlags, SetAttr};

#[test]
fn a_tree_is_made_written_renamed_read_and_removed() {
    both_ways(|v: &Fixture| {
        let dir = v.mkdir(ROOT, "d");
        let (entry, file) = v.create(dir.node, "f");
        v.write(&file, 0, b"hello world");
        assert_eq!(v.attr("d/f").size, 11, "the cache's length before write-back");
        assert_eq!(v.read(&file, 6, 100), b"world");
        file.fsync(false).unwrap();
        assert_eq!(std::fs::read(v.host("d/f")).unwrap(), b"hello world");

        v.vfs.rename(&v.root, dir.node, name("f"), ROOT, name("g"), RenameFlags::empty()).unwrap();
        assert_eq!(errno(v.walk("d/f")), Errno::NOENT);
        assert_eq!(v.walk("g").unwrap().node, entry.node);
        assert_eq!(v.cat("g"), b"hello world");
        assert_eq!(v.ls(ROOT), ["d", "g"]);

        let attr = v.set(entry.node, SetAttr { mode: Some(0o600), size: Some(5), ..SetAttr::default() });
        assert_eq!((attr.as_ref().unwrap().mode, attr.unwrap().size), (0o100_600, 5));
        assert_eq!(v.cat("g"), b"hello");

        v.vfs.unlink(&v.root, ROOT, name("g")).unwrap();
        assert_eq!(v.vfs.getattr(entry.node).unwrap().nlink, 0);
        v.write(&file, 0, b"J");
        assert_eq!(v.read(&file, 0, 100), b"Jello", "an open file outlives its name");
        drop(file);
        v.vfs.rmdir(&v.root, ROOT, name("d")).unwrap();
        assert_eq!(v.ls(ROOT), [""; 0]);
        let again = v.vfs.open(&v.root, entry.node, OFlags::RDONLY).unwrap();
        assert_eq!(v.read(&again, 0, 9), b"Jello", "reached by its orphan descriptor");
    });
}
