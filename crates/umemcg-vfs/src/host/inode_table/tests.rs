//! The table alone: names, references, which inodes stay.

use super::*;

const FILE: FileKind = FileKind::Regular;
const DIR: FileKind = FileKind::Directory;

fn key(ino: u64) -> InodeKey {
    InodeKey { ino, birth: 0 }
}
fn table() -> InodeTable {
    InodeTable::numbered(key(1), 0, NR_SHARDS_MAX)
}
fn add(table: &InodeTable, ino: u64, kind: FileKind, parent: NodeId, name: &str) -> NodeId {
    table.count(key(ino), kind, (None, None), parent, (name.as_bytes(), None)).unwrap().0
}
fn path(table: &InodeTable, node: NodeId) -> Option<String> {
    let parts = table.path(node, 0)?;
    Some(parts.iter().map(|p| String::from_utf8_lossy(p)).collect::<Vec<_>>().join("/"))
}

#[test]
fn hard_links_are_one_inode() {
    let table = table();
    let a = add(&table, 10, FILE, NodeId::ROOT, "a");
    let b = add(&table, 10, FILE, NodeId::ROOT, "b");
    assert_eq!(a, b);
    assert_eq!(path(&table, a).as_deref(), Some("b"));
    drop(table.name_removed(a, NodeId::ROOT, b"b", Loss::OneName, 1));
    assert_eq!(path(&table, a).as_deref(), Some("a"));
    assert!(table.forget(a, 1, false).0.is_empty());
    assert_eq!(table.forget(a, 1, false).0.len(), 1);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_directory_stays_while_a_child_needs_it_for_its_path() {
    let table = table();
    let dir = add(&table, 10, DIR, NodeId::ROOT, "d");
    let file = add(&table, 11, FILE, dir, "f");
    assert!(table.forget(dir, 1, false).0.is_empty());
    assert_eq!(path(&table, file).as_deref(), Some("d/f"));
    assert_eq!(table.forget(file, 1, false).0.len(), 2);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_renamed_directory_takes_its_children_along() {
    let table = table();
    let a = add(&table, 10, DIR, NodeId::ROOT, "a");
    let b = add(&table, 11, DIR, NodeId::ROOT, "b");
    let file = add(&table, 12, FILE, a, "f");
    drop(table.name_added(a, Some((NodeId::ROOT, b"a")), b, (b"c", None)));
    assert_eq!(path(&table, file).as_deref(), Some("b/c/f"));
}

#[test]
fn forgetting_too_much_is_harmless_and_the_root_stays() {
    let table = table();
    let pinned = add(&table, 10, FILE, NodeId::ROOT, "a");
    assert!(table.pin(pinned));
    assert!(table.forget(pinned, u64::MAX, false).0.is_empty());
    assert_eq!(table.unpin(pinned).len(), 1);
    assert!(table.forget(NodeId(999), 3, false).0.is_empty());
    assert!(table.forget(NodeId::ROOT, u64::MAX, false).0.is_empty());
    assert_eq!(table.len(), 1);
}

#[test]
fn a_number_that_came_back_as_another_kind_is_another_inode() {
    let table = table();
    let old = add(&table, 10, FILE, NodeId::ROOT, "a");
    let new = add(&table, 10, DIR, NodeId::ROOT, "a");
    assert_ne!(old, new);
    assert_eq!(table.find(key(10)), Some(new));
    assert_eq!(table.forget(old, 1, false).0.len(), 1);
    assert_eq!(table.find(key(10)), Some(new));
}

#[test]
fn an_inode_without_a_name_has_no_path() {
    let table = table();
    let node = add(&table, 10, FILE, NodeId::ROOT, "a");
    let fd = Arc::new(rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap());
    let loss = Loss::LastName(Arc::clone(&fd));
    let (removed, handed_back) = table.name_removed(node, NodeId::ROOT, b"a", loss, 1);
    assert!(removed.is_empty() && handed_back.is_none());
    assert_eq!(path(&table, node), None);
    // There is a bound on such descriptors.
    let other = add(&table, 11, FILE, NodeId::ROOT, "b");
    let (_, handed_back) = table.name_removed(other, NodeId::ROOT, b"b", Loss::LastName(fd), 1);
    assert!(handed_back.is_some());
    assert_eq!(table.forget(other, 1, false).0.len(), 1);
    let removed = table.forget(node, 1, false).0;
    assert!(removed[0].is_nameless);
    assert_eq!(table.nr_orphans.load(Ordering::Relaxed), 0);
}

#[test]
fn names_of_one_inode_are_bounded() {
    let table = table();
    for n in 0..100 {
        add(&table, 10, FILE, NodeId::ROOT, &format!("n{n}"));
    }
    let node = table.find(key(10)).unwrap();
    assert!(table.path(node, NAMES_MAX - 1).is_some());
    assert!(table.path(node, NAMES_MAX).is_none());
    assert_eq!(table.forget(node, 100, false).0.len(), 1);
}
