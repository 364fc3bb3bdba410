//! Random operations on files, against the plainest possible model: a vector of bytes for each
//! file.

use std::sync::Arc;

use crate::common::{MemStore, Pool, group, pool, read_all};
use proptest::prelude::*;
use umemcg_cache::{File, Readahead};
use umemcg_group::{Group, StatItem};

#[derive(Debug, Clone)]
enum Op {
    Write { file: usize, offset: u64, len: usize, byte: u8 },
    Append { file: usize, len: usize, byte: u8 },
    Read { file: usize, offset: u64, len: usize },
    SetLen { file: usize, len: u64 },
    Zero { file: usize, offset: u64, len: u64 },
    Fsync { file: usize },
    Limit { bytes: u64 },
    ForceEmpty,
    Reopen { file: usize },
    NewGroup,
    Trim,
}

const SPACE: u64 = 600_000;

fn op() -> impl Strategy<Value = Op> {
    let file = 0..2usize;
    prop_oneof![
        6 => (file.clone(), 0..SPACE, 1..70_000usize, any::<u8>())
            .prop_map(|(file, offset, len, byte)| Op::Write { file, offset, len, byte }),
        1 => (file.clone(), 1..20_000usize, any::<u8>()).prop_map(|(file, len, byte)| Op::Append { file, len, byte }),
        6 => (file.clone(), 0..SPACE, 1..100_000usize).prop_map(|(file, offset, len)| Op::Read { file, offset, len }),
        2 => (file.clone(), 0..SPACE).prop_map(|(file, len)| Op::SetLen { file, len }),
        2 => (file.clone(), 0..SPACE, 1..90_000u64).prop_map(|(file, offset, len)| Op::Zero { file, offset, len }),
        2 => file.clone().prop_map(|file| Op::Fsync { file }),
        2 => (0..600u64).prop_map(|kib| Op::Limit { bytes: kib << 10 }),
        1 => Just(Op::ForceEmpty),
        1 => file.prop_map(|file| Op::Reopen { file }),
        1 => Just(Op::NewGroup),
        1 => Just(Op::Trim),
    ]
}

struct World {
    pool: Arc<Pool>,
    group: Arc<Group>,
    stores: Vec<Arc<MemStore>>,
    files: Vec<Arc<File>>,
    model: Vec<Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let pool = pool(4 << 20);
        let tenant = group(&pool, "g", 300 << 10);
        let stores: Vec<_> = (0..2).map(|_| MemStore::new()).collect();
        let files = stores.iter().map(|s| pool.open_file(s.clone(), 0).unwrap()).collect();
        Self { pool, group: tenant, stores, files, model: vec![Vec::new(); 2] }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write { file, offset, len, byte } => {
                self.files[file].write(&self.group, offset, &vec![byte; len]).unwrap();
                let end = offset as usize + len;
                let bytes = &mut self.model[file];
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset as usize..end].fill(byte);
            }
            Op::Append { file, len, byte } => {
                let (at, nr) = self.files[file].append(&self.group, &vec![byte; len]).unwrap();
                assert_eq!((at as usize, nr), (self.model[file].len(), len));
                self.model[file].extend(vec![byte; len]);
            }
            Op::Read { file, offset, len } => {
                let bytes = &self.model[file];
                let from = (offset as usize).min(bytes.len());
                let to = (from + len).min(bytes.len());
                let mut got = Vec::new();
                while from + got.len() < to {
                    let at = (from + got.len()) as u64;
                    let pages = self.files[file]
                        .read(&self.group, at, to - from - got.len(), &Readahead::new())
                        .unwrap();
                    assert!(!pages.is_empty(), "a read inside the file gives something");
                    got.extend(pages.to_vec());
                }
                assert!(got == bytes[from..to]);
            }
            Op::SetLen { file, len } => {
                self.files[file].set_len(len).unwrap();
                self.model[file].resize(len as usize, 0);
            }
            Op::Zero { file, offset, len } => {
                let store = Arc::clone(&self.stores[file]);
                self.files[file]
                    .zero_range(&self.group, offset, len, || {
                        store.punch(offset, len);
                        Ok(())
                    })
                    .unwrap();
                let bytes = &mut self.model[file];
                let (from, to) =
                    ((offset as usize).min(bytes.len()), ((offset + len) as usize).min(bytes.len()));
                bytes[from..to].fill(0);
            }
            Op::Fsync { file } => {
                let cursor = self.files[file].sample_error();
                self.files[file].fsync(true, &cursor).unwrap();
                let mut durable = self.stores[file].after_cut(|_| false);
                // A file that was extended over a hole may be shorter in the store.
                durable.resize(self.model[file].len(), 0);
                assert!(durable == self.model[file]);
            }
            Op::Limit { bytes } => {
                self.pool.set_max(&self.group, bytes);
                // What may stay above is index nodes that lead to another group's pages of the same
                // file.
                let pages = self.group.stat_local(StatItem::InactiveFile)
                    + self.group.stat_local(StatItem::ActiveFile);
                let usage = self.group.usage_bytes();
                assert!(usage <= bytes & !4095 || (pages == 0 && usage <= 9 * 576), "{usage} over {bytes}");
            }
            Op::ForceEmpty => self.pool.force_empty(&self.group),
            Op::Reopen { file } => {
                self.files[file].fsync(true, &self.files[file].sample_error()).unwrap();
                let len = self.files[file].len();
                self.files[file] = self.pool.open_file(self.stores[file].clone(), len).unwrap();
            }
            Op::NewGroup => {
                let max = self.group.max_bytes();
                self.pool.remove_group(&self.group).unwrap();
                self.group = group(&self.pool, "g", max);
            }
            Op::Trim => self.pool.trim(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn files_hold_what_a_vector_of_bytes_would(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        for file in 0..2 {
            assert!(read_all(&world.files[file], &world.group) == world.model[file]);
        }
        assert!(world.pool.sync_all(std::time::Duration::from_secs(30)).is_empty());
        world.files.clear();
        for item in [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable] {
            assert_eq!(world.pool.root().stat_total(item), 0, "{:?}", item);
        }
    }
}
