//! Ranks of all locks and waits, as code. A thread takes locks, and waits, in rising rank only. A
//! debug build panics at the first one out of order, and at the first charge or reclaim with a lock
//! of later rank held.
//!
//! [`RANKS`] describes each; the table of `LOCKING.md` is generated from it.

/// Ranks from the outermost to the innermost. Two locks of one rank are never held together, except
/// where the acquisition says so (`RankedMutex::lock_second`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// The end of a daemon, one at a time; held over all that ends with it.
    Ending = 1,
    /// The text or the events of one open control file; held while the file is read.
    ControlFile,
    /// The threads of background reclaim; held while one starts or ends.
    Workers,
    /// An action of another thread, with nothing held that it may need: work for a worker, room in
    /// a queue, the end of a thread, of a callback, of open files on a volume, of the load of an
    /// object, of the removal of a group.
    Peer,
    /// The kernel's answer to a notification, which may wait for requests that this daemon serves.
    KernelNotification,
    /// Moves of processes between groups, then the ends of groups that processes could move to.
    Membership,
    /// One quantum of background reclaim of a group at a time; held over reclaim.
    Quantum,
    /// Writes that make a file longer, the making of the page that holes read as; held over
    /// charging and reclaim.
    FileGrowth,
    /// Room below a dirty limit: a paced writer.
    DirtyRoom,
    /// Room among the pages in flight beyond limits; held by the request that has them.
    Overrun,
    /// Charging and reclaim.
    Memory,
    /// Some write-back to finish, for at most 100 ms in a reclaim.
    Writeback,
    /// The kernel to forget names or to drop pages, for at most 20 ms at once.
    KernelRelease,
    /// One write-back of a file at a time; a look at a changed file waits for one that repeats
    /// itself.
    FileFlush,
    /// What the store has begun to read of a file: a truncation, before it takes the content.
    StoreFills,
    /// A file's content: shared by fills, writes and write-back, exclusive for truncation and
    /// moves.
    FileContent,
    /// A locked page; held by the thread that fills or writes it.
    Page,
    /// The opens of a file; held while its host file is opened.
    FileOpens,
    /// A call of a backing store.
    StoreIo,
    /// One operation of the daemon on a host file at a time; shared by reads of its attributes.
    HostFile,
    /// Names: of volumes, of a tmpfs volume.
    Names,
    /// Shards of the inode table, descriptor cache, pages that the kernel keeps of a file; shards
    /// of an object cache.
    ObjectOwner,
    /// An object cache's payers, then what one has inherited (parent before child).
    ObjectPayers,
    /// Changes of a file's index, its marks, dirty counts.
    FileIndex,
    /// A store's lists of dirty files, one for each group.
    DirtyFiles,
    /// The positions of the shared walks of a group's subtree.
    WalkPosition,
    /// The children of a group.
    GroupChildren,
    /// The lists of objects of a group.
    ObjectLists,
    /// The lists of one group: of pages, and one for each kind of object.
    Lruvec,
    /// Batches of free frames and of free index nodes, each used by some of the threads.
    FreeBatches,
    /// The free frames of an arena.
    FreeFrames,
    /// The sums of guarantees and reservations.
    Commitments,
    /// At which usage background reclaim of a group begins and ends.
    Marks,
    /// A group's limits.
    GroupLimit,
    /// Changes of a group's flag "in excess".
    GroupExcess,
    /// The marks of the children below which there is something (child before parent).
    SubtreeMarks,
    /// Groups that wait for background reclaim.
    ReclaimQueue,
    /// The stocks of other threads, kept out of their way.
    Stocks,
    /// State guarded by one lock alone; under it a thread takes no other lock, and waits for
    /// nothing.
    Leaf,
    /// A thread to be out of its stock, in which it takes the innermost locks at most.
    OwnStock,
    /// Numbers that are given back by the last reference to a group or a thread's stock, under any
    /// lock.
    Innermost,
}

/// The description of a rank.
#[derive(Debug, Clone, Copy)]
pub struct RankInfo {
    /// The rank.
    pub rank: Rank,
    /// A lock; else a wait, or an awaited resource.
    pub is_lock: bool,
    /// The state guarded by the lock, or the awaited event.
    pub what: &'static str,
    /// The files using it.
    pub place: &'static str,
}

/// All ranks in order.
pub const RANKS: &[RankInfo] = &[
    lock(
        Rank::Ending,
        "the end of a daemon, one at a time; held over all that ends with it",
        "`umemcg-cli/src/lifecycle.rs`",
    ),
    lock(
        Rank::ControlFile,
        "what one open control file shows or waits for; held while the file is read",
        "`umemcg-control/src/open_file.rs`",
    ),
    lock(
        Rank::Workers,
        "which threads of background reclaim there are; held while one starts or ends",
        "`umemcg-reclaim/src/kswapd/worker.rs`",
    ),
    wait(
        Rank::Peer,
        "another thread's doing, with nothing held that it may want: work for a worker, room in a queue, the end of a thread, of a callback, of what is open on a volume, of the load of an object, of the removal of a group",
        "`umemcg-base/src/wake_signal.rs`, `clock.rs`; wherever a condition variable has this rank",
    ),
    wait(
        Rank::KernelNotification,
        "the kernel's answer to a notification: it may wait for requests that we serve",
        "`umemcg-fuse/src/notifier.rs`, `store_messages.rs`",
    ),
    lock(
        Rank::Membership,
        "moves of processes between groups, then the ends of groups that processes could move to",
        "`umemcg-control/src/state.rs`, `umemcg-fuse/src/classify/process_classifier/mod.rs`",
    ),
    lock(
        Rank::Quantum,
        "one quantum of background reclaim of a group at a time; held over reclaim",
        "`umemcg-reclaim/src/kswapd/queue.rs`",
    ),
    lock(
        Rank::FileGrowth,
        "writes that make a file longer, the making of the page that holes read as; held over charging and reclaim",
        "`umemcg-cache/src/file/mod.rs`, `cache_core.rs`",
    ),
    wait(
        Rank::DirtyRoom,
        "room below a dirty limit: a paced writer",
        "`umemcg-cache/src/file/write_pause.rs`",
    ),
    wait(
        Rank::Overrun,
        "room among the pages in flight beyond limits; held by the request that has them",
        "`umemcg-cache/src/overrun.rs`",
    ),
    wait(Rank::Memory, "charging and reclaim", "`umemcg-reclaim/src/reclaimer/charge.rs`, `reclaim.rs`"),
    wait(
        Rank::Writeback,
        "some write-back to finish, for at most 100 ms in a reclaim",
        "`umemcg-cache/src/pool_writeback.rs`",
    ),
    wait(
        Rank::KernelRelease,
        "the kernel to forget names or to drop pages, for at most 20 ms at once",
        "`umemcg-reclaim/src/pending_release.rs`",
    ),
    lock(
        Rank::FileFlush,
        "one write-back of a file at a time; a look at a changed file waits for one that repeats itself",
        "`umemcg-cache/src/file/mod.rs`",
    ),
    wait(
        Rank::StoreFills,
        "what the store has begun to read of a file; before the content is taken for a truncation or a move",
        "`umemcg-cache/src/file/store_fills.rs`",
    ),
    lock(
        Rank::FileContent,
        "a file's content: shared by fills, writes and write-back, exclusive for truncation and moves",
        "`umemcg-cache/src/file/mod.rs`",
    ),
    wait(
        Rank::Page,
        "a locked page; held by the thread that fills or writes it",
        "`umemcg-cache/src/page_lock.rs`",
    ),
    lock(
        Rank::FileOpens,
        "the opens of a file; held while its host file is opened",
        "`umemcg-vfs/src/host/content/mod.rs`",
    ),
    wait(Rank::StoreIo, "a call of a backing store", "`umemcg-cache/src/store.rs`"),
    lock(
        Rank::HostFile,
        "one operation of the daemon on a host file at a time; shared by reads of its attributes",
        "`umemcg-vfs/src/host/shown_times.rs`",
    ),
    lock(Rank::Names, "names: of volumes, of a tmpfs volume", "`umemcg-vfs/src/volumes.rs`, `tmpfs/mod.rs`"),
    lock(
        Rank::ObjectOwner,
        "shards of the inode table, descriptor cache, pages that the kernel keeps of a file; shards of an object cache",
        "`umemcg-vfs`, `umemcg/src/object_cache/shard.rs`",
    ),
    lock(
        Rank::ObjectPayers,
        "an object cache's payers, then what one has inherited (parent before child)",
        "`umemcg/src/object_cache/payer.rs`",
    ),
    lock(
        Rank::FileIndex,
        "changes of a file's index, its marks, dirty counts",
        "`umemcg-cache/src/index/mod.rs`",
    ),
    lock(
        Rank::DirtyFiles,
        "a store's lists of dirty files, one for each group",
        "`umemcg-cache/src/store_writeback/mod.rs`",
    ),
    lock(
        Rank::WalkPosition,
        "where the shared walks of a group's subtree are",
        "`umemcg-reclaim/src/walk_position.rs`",
    ),
    lock(Rank::GroupChildren, "the children of a group", "`umemcg-group/src/tree.rs`"),
    lock(Rank::ObjectLists, "which lists of objects a group has", "`umemcg-reclaim/src/object_lists.rs`"),
    lock(
        Rank::Lruvec,
        "the lists of one group: of pages, and one for each kind of object",
        "`umemcg-reclaim/src/lruvec.rs`, `object_lists.rs`",
    ),
    lock(
        Rank::FreeBatches,
        "batches of free frames and of free index nodes, each used by some of the threads (in their order)",
        "`umemcg-base/src/batches.rs`",
    ),
    lock(Rank::FreeFrames, "the free frames of an arena", "`umemcg-arena`"),
    lock(Rank::Commitments, "the sums of guarantees and reservations", "`umemcg/src/commitments.rs`"),
    lock(
        Rank::Marks,
        "at which usage background reclaim of a group begins and ends",
        "`umemcg-reclaim/src/watermark.rs`",
    ),
    lock(Rank::GroupLimit, "a group's limits", "`umemcg-group/src/group/mod.rs`"),
    lock(Rank::GroupExcess, "changes of a group's flag \"in excess\"", "`umemcg-group/src/excess.rs`"),
    lock(
        Rank::SubtreeMarks,
        "where something is below a group (child before parent)",
        "`umemcg-group/src/subtree_marks.rs`",
    ),
    lock(
        Rank::ReclaimQueue,
        "groups that wait for background reclaim",
        "`umemcg-reclaim/src/kswapd/queue.rs`",
    ),
    lock(
        Rank::Stocks,
        "the stocks of other threads, kept out of their way",
        "`umemcg-group/src/ledger/mod.rs`",
    ),
    lock(
        Rank::Leaf,
        "what is guarded by one lock alone; under it a thread takes no other lock, and waits for nothing",
        "every `LeafMutex` and `LeafRwLock`",
    ),
    wait(
        Rank::OwnStock,
        "a thread to be out of its stock, in which it takes the innermost locks at most",
        "`umemcg-group/src/biased_lock.rs`",
    ),
    lock(
        Rank::Innermost,
        "numbers that are given back by the last reference to a group or a thread's stock, under any lock",
        "`umemcg-group/src/index_pool.rs`",
    ),
];

const fn lock(rank: Rank, what: &'static str, place: &'static str) -> RankInfo {
    RankInfo { rank, is_lock: true, what, place }
}

const fn wait(rank: Rank, what: &'static str, place: &'static str) -> RankInfo {
    RankInfo { rank, is_lock: false, what, place }
}
