//! Random operations on a volume and, the same ones, on a plain directory of the host: every result
//! and every error number must agree, and in the end the volume's view, its backing directory and
//! the plain directory are the same tree.

mod mounted;
mod plain;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::{Fixture, RESOLVES};
use mounted::Mounted;
use plain::Plain;
use proptest::prelude::*;
use rustix::fs::Mode;
use rustix::io::Errno;
use umemcg::StatItem;
use umemcg_vfs::{FallocateFlags, FileKind, OFlags, RenameFlags, Tmpfs, TmpfsConfig, Volume};

const NR_SLOTS: usize = 3;

/// A path of up to three components out of few names.
type PathParts = Vec<&'static str>;

#[derive(Debug, Clone)]
enum Op {
    Mkdir(PathParts, u32),
    Create(PathParts, u32, bool, OFlags, usize),
    Fifo(PathParts),
    Symlink(PathParts),
    Unlink(PathParts),
    Rmdir(PathParts),
    Rename(PathParts, PathParts, RenameFlags),
    Link(PathParts, PathParts),
    Chmod(PathParts, u32),
    Chown(PathParts, u32, u32),
    Truncate(PathParts, u64),
    Times(PathParts, i64),
    SetXattr(PathParts, u8),
    RemoveXattr(PathParts),
    Stat(PathParts),
    List(PathParts),
    Open(PathParts, OFlags, usize),
    Close(usize),
    Write(usize, u64, usize, u8),
    Read(usize, u64, usize),
    Cut(usize, u64),
    Allocate(usize, FallocateFlags, u64, u64),
    Sync(usize),
    SyncAll,
    DropClean(usize),
}

fn path() -> impl Strategy<Value = PathParts> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop::sample::select(vec![0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1777]);
    let access = prop::sample::select(vec![
        OFlags::RDONLY,
        OFlags::WRONLY,
        OFlags::RDWR,
        OFlags::RDWR.union(OFlags::APPEND),
        OFlags::RDWR.union(OFlags::TRUNC),
    ]);
    let slot = 0..NR_SLOTS;
    let offset = prop_oneof![0..20_000u64, Just(4096), Just(8192), Just(1 << 33)];
    let len = prop_oneof![1..10_000u64, Just(4096), Just(12_288)];
    let rename =
        prop::sample::select(vec![RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE]);
    let allocate = prop::sample::select(vec![
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
        FallocateFlags::ZERO_RANGE,
    ]);
    prop_oneof![
        4 => (path(), mode.clone()).prop_map(|(p, m)| Op::Mkdir(p, m)),
        6 => (path(), mode.clone(), any::<bool>(), access.clone(), slot.clone())
            .prop_map(|(p, m, e, a, s)| Op::Create(p, m, e, a, s)),
        1 => path().prop_map(Op::Fifo),
        1 => path().prop_map(Op::Symlink),
        2 => path().prop_map(Op::Unlink),
        1 => path().prop_map(Op::Rmdir),
        4 => (path(), path(), rename).prop_map(|(a, b, f)| Op::Rename(a, b, f)),
        2 => (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        1 => (path(), mode).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (path(), 0..3u32, 0..3u32).prop_map(|(p, u, g)| Op::Chown(p, u, g)),
        2 => (path(), offset.clone()).prop_map(|(p, l)| Op::Truncate(p, l)),
        1 => (path(), -10..1000i64).prop_map(|(p, t)| Op::Times(p, t)),
        1 => (path(), any::<u8>()).prop_map(|(p, b)| Op::SetXattr(p, b)),
        1 => path().prop_map(Op::RemoveXattr),
        2 => path().prop_map(Op::Stat),
        2 => path().prop_map(Op::List),
        4 => (path(), access, slot.clone()).prop_map(|(p, a, s)| Op::Open(p, a, s)),
        2 => slot.clone().prop_map(Op::Close),
        8 => (slot.clone(), offset.clone(), len.clone(), any::<u8>())
            .prop_map(|(s, o, l, b)| Op::Write(s, o, l as usize, b)),
        6 => (slot.clone(), offset.clone(), len.clone()).prop_map(|(s, o, l)| Op::Read(s, o, l as usize)),
        2 => (slot.clone(), offset.clone()).prop_map(|(s, l)| Op::Cut(s, l)),
        2 => (slot.clone(), allocate, 0..20_000u64, len).prop_map(|(s, f, o, l)| Op::Allocate(s, f, o, l)),
        1 => slot.clone().prop_map(Op::Sync),
        1 => Just(Op::SyncAll),
        1 => slot.prop_map(Op::DropClean),
    ]
}

/// The answer of an operation, as far as both sides must agree.
type Answer = Result<String, Errno>;

/// The attributes that must agree.
fn describe(kind: FileKind, mode: u32, nlink: u64, uid: u32, gid: u32, size: u64) -> String {
    // The size of a directory is the file system's affair.
    let size = if kind == FileKind::Directory { 0 } else { size };
    format!("{kind:?} {mode:o} {nlink} {uid}:{gid} {size}")
}

/// A tree on the host: path to attributes and content.
fn tree(root: &Path) -> BTreeMap<String, String> {
    fn add(root: &Path, at: &Path, all: &mut BTreeMap<String, String>) {
        use std::os::unix::fs::MetadataExt;
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let kind = FileKind::from_mode(meta.mode()).unwrap();
            let mut text = describe(kind, meta.mode(), meta.nlink(), meta.uid(), meta.gid(), meta.size());
            if kind == FileKind::Regular && meta.size() < 1 << 20 {
                text += &format!(" {:?}", std::fs::read(&path).unwrap());
            }
            if kind == FileKind::Directory {
                add(root, &path, all);
            }
            all.insert(path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), text);
        }
    }
    let mut all = BTreeMap::new();
    add(root, root, &mut all);
    all
}

/// Applies the same to a plain directory and to a volume; returns the plain directory.
fn apply(ops: &[Op], mounted: &mut Mounted) -> tempfile::TempDir {
    let plain_dir = tempfile::tempdir().unwrap();
    let root = rustix::fs::open(plain_dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut plain = Plain { root, slots: Default::default() };
    mounted.caller.umask = 0;
    for (n, op) in ops.iter().enumerate() {
        let expected = plain.apply(op);
        let answer = mounted.apply(op);
        assert_eq!(answer, expected, "operation {n}: {op:?}");
        if n % 3 == 0 {
            mounted.forget_all();
        }
    }
    mounted.slots = Default::default();
    mounted.forget_all();
    plain_dir
}

fn agree(ops: &[Op], resolve: umemcg_vfs::Resolve) {
    let v = Fixture::with(|config| {
        config.resolve = resolve;
        config.max_idle_descriptors = 8;
    });
    let mut mounted = Mounted::new(Arc::clone(&v.vfs) as _, v.root.clone());
    let plain = apply(ops, &mut mounted);
    v.vfs.syncfs().unwrap();
    assert_eq!(tree(v.dir.path()), tree(plain.path()));
    assert_eq!(v.vfs.nr_inodes(), 1, "nothing without references is remembered");
}

/// The same for a volume in memory. Directories, owners and modes included, it is told from the
/// host's by nothing.
fn agree_in_memory(ops: &[Op]) {
    let v = Fixture::new();
    let usage = v.engine.root().usage_bytes();
    let tmpfs =
        Tmpfs::new(&v.engine, &TmpfsConfig { size_bytes: Some(32 << 20), ..TmpfsConfig::default() }, 0);
    let mut mounted = Mounted::new(Arc::clone(&tmpfs) as _, v.root.clone());
    let plain = apply(ops, &mut mounted);
    let expected = tree(plain.path());
    assert_eq!(mounted.tree(), expected);
    let nr_inodes = tmpfs.nr_inodes();
    assert!(nr_inodes <= 1 + expected.len(), "{nr_inodes} inodes, {} names", expected.len());
    drop((mounted, tmpfs));
    for item in [StatItem::Shmem, StatItem::Unevictable] {
        assert_eq!(v.engine.root().stat_total(item), 0, "{item:?}");
    }
    v.engine.root().drain_stocks();
    // What holes read as was made with the first file.
    let left = v.engine.root().usage_bytes().saturating_sub(usage);
    assert!(left <= 4096, "{left} bytes, {} index nodes", v.engine.cache().nr_index_nodes());
}

/// `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_volume_behaves_like_a_plain_directory(ops in prop::collection::vec(op(), 1..80)) {
        rustix::process::umask(Mode::empty());
        for resolve in RESOLVES {
            agree(&ops, resolve);
        }
    }

    #[test]
    fn a_volume_in_memory_behaves_like_a_plain_directory(ops in prop::collection::vec(op(), 1..120)) {
        rustix::process::umask(Mode::empty());
        agree_in_memory(&ops);
    }
}
