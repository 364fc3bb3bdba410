//! Files that become dirty while they leave the queue.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};

use umemcg_arena::Arena;
use umemcg_group::GroupTree;
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
    let arena = Arena::new(1 << 20, 1).unwrap();
    let reclaimer = Arc::new(Reclaimer::new(arena, Arc::clone(&tree), 1).unwrap());
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
