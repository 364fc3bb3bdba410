//! The state that users and disturbers share: one engine, its files with their models, the groups,
//! the store. And what must be true of all of it at the end.

use std::sync::Arc;
use std::time::Duration;

use umemcg::files::{File, Readahead};
use umemcg::{DropCaches, Engine, EngineConfig, Group, StatItem};
use umemcg_base::LeafMutex;
use umemcg_base::schedule;
use umemcg_base::sync::atomic::{AtomicBool, Ordering};

use crate::disk::Random;
use crate::model::{FileModel, LEN_MAX};
use crate::objects::Objects;
use crate::store::{Fault, Store, StoreFile};
use crate::users::Mix;

/// Bytes of the file that only fills memory.
const BALLAST: usize = 3 << 20;
/// Limits that groups get.
const LIMITS: [u64; 8] = [0, 0, 8 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, u64::MAX];

/// The store, as users ask it.
#[derive(Debug)]
pub struct StoreView {
    store: Arc<Store>,
    pub disk: Arc<crate::disk::Disk>,
}

impl StoreView {
    pub fn nr_refused(&self) -> u64 {
        self.store.nr_refused.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl std::ops::Deref for StoreView {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.store
    }
}

/// See the module text.
#[derive(Debug)]
pub struct World {
    pub engine: Arc<Engine>,
    pub store: StoreView,
    pub files: Vec<Arc<File>>,
    pub models: Vec<FileModel>,
    /// Groups that operations are charged to.
    pub groups: LeafMutex<Vec<Arc<Group>>>,
    pub ballast: Arc<File>,
    pub ballast_group: Arc<Group>,
    /// Charged to the groups above.
    pub objects: Objects,
    /// The largest length of files, in bytes.
    pub len_max: usize,
    /// The operations of users.
    pub mix: Mix,
    /// The users have ended.
    pub is_over: AtomicBool,
}

pub fn limit(random: &mut Random) -> u64 {
    LIMITS[random.below(LIMITS.len())]
}

impl World {
    pub fn new(random: &mut Random, nr_files: usize) -> Arc<Self> {
        let engine = Engine::new(
            EngineConfig::new([4 << 20, 6 << 20, 8 << 20][random.below(3)])
                .nr_kswapd(2)
                .pool_marks(random.below(2) == 0),
        )
        .unwrap();
        let store = Store::new(nr_files + 1, random.below(1 << 30) as u64);
        store.disk.set_len(nr_files, BALLAST);
        store.disk.sync(nr_files);
        let open = |file: usize, len: usize, begins_reads: bool| {
            let there = StoreFile { store: Arc::clone(&store), file, begins_reads };
            engine.open_file(Arc::new(there), len as u64).unwrap()
        };
        let first_begun = random.below(2);
        let files = (0..nr_files).map(|file| open(file, 0, file % 2 == first_begun)).collect();
        let group = |name: &str| engine.create_group(engine.root(), name.as_ref()).unwrap();
        let groups = ["a", "b", "c"].map(group);
        Arc::new(Self {
            files,
            models: (0..nr_files).map(|_| FileModel::new()).collect(),
            groups: LeafMutex::new(groups.to_vec()),
            ballast: open(nr_files, BALLAST, false),
            ballast_group: group("ballast"),
            objects: crate::objects::new(&engine),
            len_max: [LEN_MAX / 24, LEN_MAX / 8, LEN_MAX][random.below(3)],
            mix: Mix::new(random),
            is_over: AtomicBool::new(false),
            store: StoreView { disk: Arc::clone(&store.disk), store },
            engine,
        })
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Nothing is under way any more: everything is durable, everywhere the same, and can go.
    pub fn check_end(self: Arc<Self>) {
        self.store.set_fault(Fault::None);
        schedule::begin("the last sync");
        let lost = self.engine.sync_all(Duration::from_secs(600));
        assert!(lost.is_empty(), "not durable at the end: {lost:?}");
        schedule::begin("the last reads");
        for (nr, (file, model)) in self.files.iter().zip(&self.models).enumerate() {
            let bytes = read_all(file, self.engine.root());
            model.check_end(&bytes).unwrap_or_else(|wrong| panic!("file {nr} at the end: {wrong}"));
            // A file that was extended over a hole may be shorter in the store.
            let mut stored = self.store.disk.read(nr, 0, bytes.len());
            stored.resize(bytes.len(), 0);
            let differs = (0..bytes.len()).find(|&at| bytes[at] != stored[at]);
            assert_eq!(differs, None, "file {nr}: the first byte that the store has otherwise");
            // A new open file is told of errors that no other has heard of, once.
            let cursor = file.sample_error();
            let _ = file.check_error(&cursor);
            let since = model.begin_sync();
            file.fsync(false, &cursor).unwrap();
            model.is_synced(since);
        }
        crate::model::check_cut(&self.store.disk, &self.models, &mut |_| 0).unwrap();
        assert_eq!(self.engine.root().stat_total(StatItem::Reserved), 0, "of accounts that are gone");
        schedule::begin("the last reclaim");
        for item in [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable] {
            assert_eq!(self.engine.root().stat_total(item), 0, "{item:?} at the end");
        }
        // A worker of background reclaim may have some of them off their lists.
        for _ in 0..20 {
            self.engine.drop_caches(DropCaches::Pages);
            schedule::sleep(Duration::from_millis(100));
        }
        crate::objects::check_end(&self);
        for file in self.files.iter().chain([&self.ballast]) {
            assert_eq!(file.nr_cached_pages(), 0, "a clean page that reclaim does not find");
        }
        schedule::end();
    }
}

fn read_all(file: &Arc<File>, group: &Arc<Group>) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        // Nothing is read ahead: the threads that end what the store begins have ended.
        let pages = file.read(group, bytes.len() as u64, 128 << 10, &Readahead::new()).unwrap();
        if pages.is_empty() {
            return bytes;
        }
        bytes.extend(pages.to_vec());
    }
}
