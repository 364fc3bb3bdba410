//! Files that become dirty while they leave the queue, and the order of turns.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};

use umemcg_arena::Arena;
use umemcg_group::GroupTree;
use umemcg_group::testing::hundred_below;
use umemcg_reclaim::Reclaimer;

use super::*;
use crate::dirty::dirty_file::TurnWritten;
use crate::dirty::list_position::ListPosition;
use crate::dirty::owner::DirtyOwner;
use crate::dirty::queue_mark::QueueMark;

const ID: u32 = 7;

/// A file that becomes dirty while it leaves the queue. Another thread then asks for the dirty
/// files.
#[derive(Debug, Default)]
struct DirtyAgain {
    mark: QueueMark,
    position: ListPosition,
    owner: DirtyOwner,
    nr_looks: AtomicU32,
    store: OnceLock<Arc<StoreWriteback>>,
    answer: LeafMutex<Option<Receiver<Vec<u32>>>>,
}

impl DirtyFile for DirtyAgain {
    fn id(&self) -> u32 {
        ID
    }
    fn is_stable(&self) -> bool {
        let nr = self.nr_looks.fetch_add(1, Ordering::Relaxed);
        if nr == 1 {
            let store = Arc::clone(self.store.get().unwrap());
            let (answer, answered) = channel();
            std::thread::spawn(move || answer.send(store.unclean_files()));
            let early = answered.recv_timeout(Duration::from_millis(100));
            let (again, answered_again) = channel();
            if let Ok(early) = &early {
                again.send(early.clone()).unwrap();
            }
            *self.answer.lock() = Some(if early.is_ok() { answered_again } else { answered });
        }
        nr == 0
    }
    fn queue_mark(&self) -> &QueueMark {
        &self.mark
    }
    fn list_position(&self) -> &ListPosition {
        &self.position
    }
    fn dirty_owner(&self) -> &DirtyOwner {
        &self.owner
    }
    fn flush_turn(self: Arc<Self>, _: &FlushPace) -> io::Result<TurnWritten> {
        unreachable!("no flusher is started")
    }
    fn confirm_turn(self: Arc<Self>) -> io::Result<()> {
        unreachable!("no flusher is started")
    }
}

/// Returns a store with such a file in its queue.
fn with_file() -> (Arc<StoreWriteback>, Arc<DirtyAgain>) {
    let tree = GroupTree::new(1 << 20);
    let arena = Arena::new(1 << 20).unwrap();
    let reclaimer = Arc::new(Reclaimer::new(arena, Arc::clone(&tree)).unwrap());
    let store = StoreWriteback::new(&Arc::new(PoolWriteback::new(&reclaimer)), StoreId(1));
    // As if a thread were writing already.
    store.queue.lock().is_served = true;
    let file = Arc::new(DirtyAgain::default());
    file.store.set(Arc::clone(&store)).unwrap();
    file.owner.restore(Arc::clone(tree.root()));
    assert!(store.enqueue(&*file, || Arc::<DirtyAgain>::clone(&file), || Arc::clone(tree.root())));
    (store, file)
}

#[test]
fn a_file_that_was_clean_is_not_written_while_it_is_young() {
    let (store, _file) = with_file();
    assert!(!store.round().unwrap());
    assert_eq!(store.unclean_files(), [ID]);
    store.close();
}

#[test]
fn a_file_that_becomes_dirty_as_it_leaves_is_always_found() {
    let (store, file) = with_file();
    store.forget_clean();
    let answered = file.answer.lock().take().expect("it was looked at twice");
    assert_eq!(answered.recv().unwrap(), [ID]);
    store.close();
}

/// The turns that files had, by their numbers.
#[derive(Debug)]
struct Turns {
    store: Arc<StoreWriteback>,
    order: LeafMutex<Vec<u32>>,
    /// The store stops after each so many turns.
    nr_of_round: usize,
}

/// A small file, or one with more to write after each turn.
#[derive(Debug)]
struct Turning {
    id: u32,
    is_small: bool,
    mark: QueueMark,
    position: ListPosition,
    owner: DirtyOwner,
    turns: Arc<Turns>,
}

impl DirtyFile for Turning {
    fn id(&self) -> u32 {
        self.id
    }
    fn is_stable(&self) -> bool {
        self.is_small && self.turns.order.lock().contains(&self.id)
    }
    fn queue_mark(&self) -> &QueueMark {
        &self.mark
    }
    fn list_position(&self) -> &ListPosition {
        &self.position
    }
    fn dirty_owner(&self) -> &DirtyOwner {
        &self.owner
    }
    fn flush_turn(self: Arc<Self>, pace: &FlushPace) -> io::Result<TurnWritten> {
        let mut order = self.turns.order.lock();
        order.push(self.id);
        let stops = order.len().is_multiple_of(self.turns.nr_of_round);
        self.turns.store.stop.store(stops, Ordering::Relaxed);
        Ok(TurnWritten { pages: if self.is_small { 1 } else { pace.budget }, is_unconfirmed: false })
    }
    fn confirm_turn(self: Arc<Self>) -> io::Result<()> {
        unreachable!("each turn confirms what it writes")
    }
}

impl Turns {
    /// Creates a tree and a store without files.
    fn new(nr_of_round: usize) -> (Arc<GroupTree>, Arc<Self>) {
        let tree = GroupTree::new(64 << 20);
        let arena = Arena::new(1 << 20).unwrap();
        let reclaimer = Arc::new(Reclaimer::new(arena, Arc::clone(&tree)).unwrap());
        let store = StoreWriteback::new(&Arc::new(PoolWriteback::new(&reclaimer)), StoreId(1));
        store.queue.lock().is_served = true;
        (tree, Arc::new(Self { store, order: LeafMutex::default(), nr_of_round }))
    }

    /// Queues a file of a group.
    fn add(self: &Arc<Self>, id: u32, is_small: bool, group: &Arc<Group>) {
        let (mark, position, owner) = (QueueMark::default(), ListPosition::default(), DirtyOwner::default());
        owner.restore(Arc::clone(group));
        let file = Arc::new(Turning { id, is_small, mark, position, owner, turns: Arc::clone(self) });
        assert!(self.store.enqueue(&*file, || Arc::<Turning>::clone(&file), || Arc::clone(group)));
    }

    /// Runs a round that writes everything; returns all turns so far.
    fn round(&self) -> Vec<u32> {
        self.store.urgent.store(true, Ordering::Relaxed);
        self.store.stop.store(false, Ordering::Relaxed);
        assert!(self.store.round().is_ok());
        self.order.lock().clone()
    }
}

#[test]
fn a_tenant_with_many_groups_has_every_second_turn() {
    let (tree, turns) = Turns::new(4);
    let many = tree.create(tree.root(), "many".as_ref()).unwrap();
    for (group, id) in hundred_below(&tree, &many).iter().zip(0..) {
        turns.add(id, false, group);
    }
    turns.add(100, false, &tree.create(tree.root(), "one".as_ref()).unwrap());
    (0..4).for_each(|_| drop(turns.round()));
    let expected: Vec<u32> = (0..10).flat_map(|id| [id, 100]).collect();
    assert_eq!(turns.round(), expected, "a round goes on where the last one ended");
    turns.store.close();
}

#[test]
fn a_turn_is_a_long_file_or_many_small_ones() {
    let (tree, turns) = Turns::new(1000);
    let [small, long] = ["small", "long"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
    let nr = NR_TURN_PARTS as u32;
    (0..nr + 5).for_each(|id| turns.add(id, true, &small));
    turns.add(100, false, &long);
    let expected: Vec<u32> = (0..nr).chain([100]).chain(nr..nr + 5).chain([100]).collect();
    assert_eq!(turns.round(), expected);
    turns.store.close();
}
