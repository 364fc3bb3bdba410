//! The state shared by all files of a cache: the reclaimer, the index nodes, the pages in flight
//! beyond limits, and the write-back of its stores.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};

use umemcg_arena::{Arena, FrameId};
use umemcg_base::{LeafMutex, Rank, RankedMutex};
use umemcg_group::Group;
use umemcg_reclaim::Reclaimer;

use crate::ahead_room::AheadRoom;
use crate::begun_reads::BegunReads;
use crate::group_turn::FlushGoal;
use crate::node_pool::NodePool;
use crate::overrun::Overrun;
use crate::page_lock::PageWaiters;
use crate::pool_writeback::PoolWriteback;
use crate::read_pace::ReadPace;
use crate::read_paces::ReadPaces;
use crate::shadow_leaves::ShadowLeaves;
use crate::store::StoreId;
use crate::store_writeback::StoreWriteback;
use crate::zero_page::ZeroPage;

/// See the module text.
pub(crate) struct CacheCore {
    reclaimer: Arc<Reclaimer>,
    nodes: Arc<NodePool>,
    overrun: Arc<Overrun>,
    begun_reads: BegunReads,
    read_paces: ReadPaces,
    ahead_room: AheadRoom,
    waiters: PageWaiters,
    writeback: Arc<PoolWriteback>,
    /// The stores with files in the cache. The entry of a store without files is replaced or swept.
    stores: LeafMutex<BTreeMap<StoreId, Weak<StoreWriteback>>>,
    /// The zero page that holes of files in memory read as; created with the first such file.
    zero_page: OnceLock<ZeroPage>,
    making_zero_page: RankedMutex<()>,
}

impl fmt::Debug for CacheCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheCore").field("limits", self.writeback.dirty_limits()).finish_non_exhaustive()
    }
}

impl CacheCore {
    /// # Errors
    /// When the operating system has no address space for the index nodes.
    pub(crate) fn new(reclaimer: Arc<Reclaimer>) -> io::Result<Self> {
        let pool_bytes = reclaimer.tree().capacity_bytes();
        Ok(Self {
            nodes: Arc::new(NodePool::new(pool_bytes, ShadowLeaves::new(&reclaimer))?),
            overrun: Arc::default(),
            begun_reads: BegunReads::new(),
            read_paces: ReadPaces::default(),
            ahead_room: AheadRoom::default(),
            waiters: PageWaiters::default(),
            writeback: Arc::new(PoolWriteback::new(&reclaimer)),
            stores: LeafMutex::default(),
            zero_page: OnceLock::new(),
            making_zero_page: RankedMutex::new(Rank::FileGrowth, ()),
            reclaimer,
        })
    }

    /// Returns the frames.
    #[inline]
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        self.reclaimer.arena()
    }

    /// Returns the reclaimer.
    #[inline]
    pub(crate) fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.reclaimer
    }

    pub(crate) fn nodes(&self) -> &Arc<NodePool> {
        &self.nodes
    }

    pub(crate) fn overrun(&self) -> &Arc<Overrun> {
        &self.overrun
    }

    pub(crate) fn begun_reads(&self) -> &BegunReads {
        &self.begun_reads
    }

    /// Returns the read pace of a source.
    pub(crate) fn read_pace(&self, source: StoreId) -> Arc<ReadPace> {
        self.read_paces.of(source)
    }

    pub(crate) fn ahead_room(&self) -> &AheadRoom {
        &self.ahead_room
    }

    pub(crate) fn waiters(&self) -> &PageWaiters {
        &self.waiters
    }

    /// Returns the write-back state shared by all stores.
    pub(crate) fn writeback(&self) -> &Arc<PoolWriteback> {
        &self.writeback
    }

    /// Creates the zero page for holes, if there is none.
    ///
    /// # Errors
    /// When the pool has no page for it.
    pub(crate) fn make_zero_page(&self) -> io::Result<()> {
        let _one_makes_it = self.making_zero_page.lock();
        if self.zero_page.get().is_none() {
            let made = self.zero_page.set(ZeroPage::new(&self.reclaimer).ok_or(io::ErrorKind::OutOfMemory)?);
            debug_assert!(made.is_ok());
        }
        Ok(())
    }

    /// Returns the zero page for holes, once there is one.
    pub(crate) fn zero_page(&self) -> Option<FrameId> {
        self.zero_page.get().map(|page| page.frame)
    }

    /// Returns the write-back of a store; creates it if the store has none.
    pub(crate) fn store(&self, id: StoreId) -> Arc<StoreWriteback> {
        let mut stores = self.stores.lock();
        if let Some(store) = stores.get(&id).and_then(Weak::upgrade) {
            return store;
        }
        if stores.len().is_power_of_two() {
            stores.retain(|_, store| store.strong_count() > 0);
        }
        let store = StoreWriteback::new(&self.writeback, id);
        stores.insert(id, Arc::downgrade(&store));
        store
    }

    /// Returns the write-back of all stores with files in the cache.
    pub(crate) fn stores(&self) -> Vec<Arc<StoreWriteback>> {
        self.stores.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Starts write-back of all dirty data of a group and the groups below it: its own files, or
    /// shared files if it has none.
    pub(crate) fn flush_group(&self, group: &Arc<Group>) {
        self.want_flushed(group, FlushGoal::All);
    }

    /// Starts write-back of a group's dirty files until it is below its background threshold.
    pub(crate) fn flush_over_background(&self, group: &Arc<Group>) {
        self.want_flushed(group, FlushGoal::ToBackground);
    }

    fn want_flushed(&self, group: &Arc<Group>, wanted: FlushGoal) {
        for store in self.stores() {
            if store.nr_unclean() > 0 {
                store.want_flushed(group, wanted);
            }
        }
    }
}
