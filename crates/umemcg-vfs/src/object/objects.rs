//! The state of a volume of objects, and the requests to the store for unknown or outdated facts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::files::StoreId;
use umemcg::{ChargeEffort, Engine, Group};
use umemcg_base::{Rank, RankedMutex, assert_no_locks_held};

use super::absent_names::AbsentNames;
use super::config::{Freshness, ObjectConfig};
use super::content::Content;
use super::failure_log::FailureLog;
use super::file_labels::FileLabels;
use super::hidden_keys::HiddenKeys;
use super::kernel_copy::KernelCopy;
use super::key_search::{KeySearch, may_mark_directory};
use super::listed_part::OpenListings;
use super::listing_place::Listings;
use super::node::{Facts, KEY_BYTES_MAX, Node, NodeCharge, Told};
use super::shown_attributes::ShownAttributes;
use super::tree::{Removed, Tree};
use crate::attr::{Attr, Entry, NodeId, Timestamp};
use crate::bucket::{Bucket, ListedName, ObjectInfo, TenantScope};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::kernel_cache::KernelCache;
use crate::kernel_page_lists::KernelPageLists;
use crate::name_lists::NameLists;

/// Node ids from a volume's base up to this offset are reserved for its root.
const FIRST_NODE: u64 = 64;
/// How long names and attributes are believed where opens ask again.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long a listing is believed while the directory is read: a slow reader of a thousand names
/// must not cost a request for each.
const LISTING_BELIEVED: Duration = Duration::from_secs(10);
/// How soon after a lookup an open of the same thread does not ask again: it is the same open.
const SAME_OPEN: Duration = Duration::from_millis(250);
/// Most attempts of a lookup or an open while others change the same name.
const NR_LOOKUPS_MAX: usize = 16;

/// See the module text. One for each volume, shared with its open files.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) bucket: Arc<dyn Bucket>,
    pub(super) store_id: StoreId,
    pub(super) hidden: HiddenKeys,
    pub(super) failures: Arc<FailureLog>,
    /// The kernel's cache of inodes, once it is set.
    pub(super) kernel: OnceLock<Arc<dyn KernelCache>>,
    /// The lists of pages kept by the kernel, if it keeps any.
    pub(super) kernel_page_lists: OnceLock<Arc<KernelPageLists>>,
    pub(super) tree: RankedMutex<Tree>,
    /// (A) The next node id. Relaxed: only uniqueness matters.
    next_node: AtomicU64,
    lists: OnceLock<NameLists>,
    freshness: Freshness,
    absent: AbsentNames,
    /// The parts of listings kept by open directories.
    pub(super) open_listings: OpenListings,
    pub(super) shown: ShownAttributes,
    /// Last, because everything above gives memory back to it.
    pub(super) engine: Arc<Engine>,
}

impl Objects {
    pub(super) fn new(engine: &Arc<Engine>, config: &ObjectConfig, (id, base): (StoreId, u64)) -> Self {
        Self {
            bucket: Arc::clone(&config.bucket),
            store_id: id,
            hidden: HiddenKeys::default(),
            failures: Arc::new(FailureLog::new()),
            kernel: OnceLock::new(),
            kernel_page_lists: OnceLock::new(),
            tree: RankedMutex::new(Rank::ObjectOwner, Tree::new(Instant::now())),
            next_node: AtomicU64::new(base + FIRST_NODE),
            lists: OnceLock::new(),
            freshness: config.freshness,
            absent: AbsentNames::default(),
            open_listings: OpenListings::default(),
            shown: ShownAttributes {
                are_stored: config.stores_attributes && config.bucket.keeps_metadata(),
                owner: (config.uid, config.gid),
                since: Timestamp::now(),
            },
            engine: Arc::clone(engine),
        }
    }

    pub(super) fn lists(&self) -> Option<&NameLists> {
        self.lists.get()
    }

    /// Returns a node id never given out before.
    pub(super) fn next_node(&self) -> NodeId {
        NodeId(self.next_node.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes the lists of names, before the first is entered.
    pub(super) fn lists_or(&self, make: impl FnOnce() -> NameLists) {
        self.lists.get_or_init(make);
    }

    /// Returns the charge effort of a request without room. On an older kernel it is one round,
    /// because the thread notifying the kernel of stale names may wait for the request.
    pub(super) fn charge_effort(&self) -> ChargeEffort {
        match self.kernel.get().is_some_and(|kernel| kernel.asks_by_name()) {
            true => ChargeEffort::Opportunistic,
            false => ChargeEffort::Full,
        }
    }

    /// Logs that a file cannot be changed without a staging directory, and returns the error.
    pub(super) fn needs_staging(&self, node: NodeId) -> Errno {
        let key = self.tree.lock().path(node).unwrap_or_default();
        self.failures.note_refusal(&key, "only new files and whole replacements can be written, from the first byte to the last; use --staging DIR for other changes");
        Errno::OPNOTSUPP
    }

    /// Notes a listed key that cannot be shown. Logs the first.
    pub(super) fn hide(&self, key: &str) {
        if self.hidden.add(key) {
            let url = self.bucket.url();
            tracing::warn!(
                url,
                ?key,
                "a key cannot be shown as a path; `umemcg volume list` counts such keys"
            );
        }
    }

    /// Returns a bound on the node ids given out so far.
    pub(super) fn nodes_end(&self) -> u64 {
        self.next_node.load(Ordering::Relaxed)
    }

    /// Returns the inode number of a node; 0 if unknown.
    pub(super) fn ino(&self, node: NodeId) -> u64 {
        let tree = self.tree.lock();
        tree.get(node).ok().or_else(|| tree.removed(node)).map_or(0, |found| found.ino)
    }

    pub(super) fn is_believed(&self, told: Told) -> bool {
        match self.freshness {
            Freshness::CloseToOpen => told.at.elapsed() < BELIEVED,
            Freshness::Ttl(time) => told.at.elapsed() < time,
            Freshness::Immutable => true,
        }
    }

    /// As [`is_believed`](Self::is_believed), for a listing of a directory being read.
    pub(super) fn is_listing_believed(&self, told: Told) -> bool {
        let is_fresh = self.freshness == Freshness::CloseToOpen && told.at.elapsed() < LISTING_BELIEVED;
        is_fresh || self.is_believed(told)
    }

    fn must_open_ask(&self, told: Told, caller: &Caller) -> bool {
        match self.freshness {
            Freshness::CloseToOpen => {
                let is_same_open = told.thread == caller.thread && told.thread != 0;
                !is_same_open || told.at.elapsed() >= SAME_OPEN
            }
            _ => !self.is_believed(told),
        }
    }

    /// Returns the listings of the store.
    pub(super) fn listings(&self) -> Listings<'_> {
        Listings { bucket: &*self.bucket, failures: &self.failures }
    }

    /// Returns the facts about an object, and its labels. May sleep for the store.
    ///
    /// # Errors
    /// `ESTALE` when it has another version by now; the store's.
    pub(super) fn labels_of(
        &self,
        node: NodeId,
        key: &str,
        base: &ObjectInfo,
    ) -> Result<(ObjectInfo, FileLabels), Errno> {
        assert_no_locks_held("a request to a store");
        match self.bucket.find(key) {
            Ok(Some(there)) if there.is_same(base) => {
                let labels = self.shown.labels(&there);
                Ok((there, labels))
            }
            Ok(_) => {
                // The kernel looks the name up again, and finds the new version.
                self.unlink_node(node, Instant::now());
                Err(Errno::STALE)
            }
            Err(error) => Err(self.failures.report(&error)),
        }
    }

    /// Finds a name and counts a lookup. May sleep for memory and for the store.
    pub(super) fn lookup(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &str,
    ) -> Result<Entry, VfsError> {
        let _scope = TenantScope::of(&caller.group);
        for nr in 0..NR_LOOKUPS_MAX {
            match self.lookup_once(caller, (parent, name), nr == 0) {
                // A name was removed here while the store was asked.
                Err(VfsError::Host(Errno::AGAIN)) => {}
                found => return found,
            }
        }
        Err(Errno::BUSY.into())
    }

    fn lookup_once(
        self: &Arc<Self>,
        caller: &Caller,
        (parent, name): (NodeId, &str),
        is_first: bool,
    ) -> Result<Entry, VfsError> {
        // Taken before the key, so that a rename in between counts as newer.
        let at = Instant::now();
        let (key, was_directory) = {
            let mut tree = self.tree.lock();
            let key = tree.prefix(parent)? + name;
            let known = tree.child(parent, name).map(|(node, found)| (node, found.told, found.shown()));
            if let Some((node, told, facts)) = &known
                && (tree.get(*node)?.is_staged()
                    || self.is_believed(*told) && !tree.get(*node)?.is_outdated())
            {
                tree.count(self.lists(), *node)?;
                return Ok(self.entry(*node, tree.get(*node)?.ino, facts));
            }
            (key, known.is_some_and(|(_, _, facts)| matches!(facts, Facts::Directory(_))))
        };
        if key.len() > KEY_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if let Some(listed) = self.listed(parent, name).filter(|_| is_first) {
            return self.enter(self.charge_effort(), &caller.group, (parent, name), listed, true);
        }
        let search = KeySearch { listings: self.listings(), shown: &self.shown, key: &key, name };
        let found = if was_directory { search.find_again() } else { search.find() };
        let found = match found {
            Err(Errno::NOENT) if self.counts_empty(parent, name) => Ok(Facts::Directory(None)),
            found => found
                .map(|told| self.known_below_mark(&self.tree.lock(), (parent, name), &told).unwrap_or(told)),
        };
        match found {
            Ok(facts) => {
                let told = Told { at, thread: caller.thread };
                self.enter(self.charge_effort(), &caller.group, (parent, name), (facts, told), true)
            }
            Err(errno) => {
                if errno == Errno::NOENT {
                    self.unlink(parent, name, at);
                    self.absent.note(caller.thread, (parent, name), at);
                }
                Err(errno.into())
            }
        }
    }

    /// Returns the facts about a known directory without stored keys, if the store has reported
    /// only the mark of the directory.
    fn known_below_mark(&self, tree: &Tree, (parent, name): (NodeId, &str), told: &Facts) -> Option<Facts> {
        // First: most objects are not empty, and are not looked for.
        let is_mark = matches!(told, Facts::Object(info) if may_mark_directory(info, &*self.bucket));
        let (_, found) = is_mark.then(|| tree.child(parent, name))??;
        let is_kept =
            matches!(found.facts, Facts::Directory(_)) && (found.is_staged() || found.is_shown_empty());
        is_kept.then(|| found.facts.clone())
    }

    /// Returns the facts about a listed name, if all of them are known, and the listing shows which
    /// version it is.
    pub(super) fn listed_facts(&self, tree: &Tree, directory: NodeId, listed: &ListedName) -> Option<Facts> {
        let told = listed.object.clone().map_or(Facts::Directory(None), Facts::Object);
        let told = self.known_below_mark(tree, (directory, &listed.name), &told).unwrap_or(told);
        let known = tree.child(directory, &listed.name).map(|(_, found)| &found.facts);
        if let (Some(Facts::Object(known)), Facts::Object(info)) = (known, &told)
            && known.may_be(info)
        {
            return None;
        }
        let must_know = self.shown.are_stored && told.attributes().is_none();
        if must_know { tree.known_facts(directory, &listed.name, &told) } else { Some(told) }
    }

    /// Returns the facts about a name from a listing of a directory being read, if they are
    /// believed.
    fn listed(&self, directory: NodeId, name: &str) -> Option<(Facts, Told)> {
        let (listed, told) = self.open_listings.find(directory, name)?;
        let tree = self.tree.lock();
        let is_good = self.is_listing_believed(told) && !tree.has_changed(directory, told.at);
        let is_outdated = tree.child(directory, name).is_some_and(|(_, found)| found.is_outdated());
        let facts = self.listed_facts(&tree, directory, &listed)?;
        (is_good && !is_outdated).then_some((facts, told))
    }

    /// Returns when the store was asked for an absent name, if a lookup of the same thread has just
    /// done so and nothing was made or removed in the directory since.
    pub(super) fn absent_since(&self, caller: &Caller, parent: NodeId, name: &str) -> Option<Instant> {
        let at = self.absent.take(caller.thread, (parent, name), SAME_OPEN)?;
        let tree = self.tree.lock();
        let is_absent = tree.child(parent, name).is_none() && !tree.has_changed(parent, at);
        is_absent.then_some(at)
    }

    /// Returns whether a directory exists without a key below it.
    fn counts_empty(&self, parent: NodeId, name: &str) -> bool {
        self.tree.lock().child(parent, name).is_some_and(|(_, found)| found.is_shown_empty())
    }

    /// Counts a lookup of a name, and enters the name if it is new.
    ///
    /// # Errors
    /// `ENOMEM`, `ESTALE`; `EAGAIN` for facts out of date: a name was removed from the directory
    /// since, or, after a report of the store, its file was stored from here.
    pub(super) fn enter(
        self: &Arc<Self>,
        effort: ChargeEffort,
        group: &Arc<Group>,
        (parent, name): (NodeId, &str),
        (facts, told): (Facts, Told),
        is_report: bool,
    ) -> Result<Entry, VfsError> {
        let known = |tree: &mut Tree| {
            let node = tree.count_known(self.lists(), (parent, name), &facts, told)?;
            let found = tree.get(node).ok()?;
            Some(self.entry(node, found.ino, &found.shown()))
        };
        if let Some(entry) = known(&mut self.tree.lock()) {
            return Ok(entry);
        }
        let charge = NodeCharge::take(effort, &self.engine, group)?;
        let lists = self.lists().ok_or(Errno::STALE)?;
        let entered = {
            let mut tree = self.tree.lock();
            // Others may have been faster.
            match known(&mut tree) {
                Some(entry) => {
                    drop(tree);
                    drop(charge);
                    return Ok(entry);
                }
                None if is_report && tree.is_stored_since((parent, name), told) => {
                    Err((Errno::AGAIN, charge))
                }
                None => {
                    let node = self.next_node();
                    let entered = tree.enter(lists, node, (parent, name), (facts.clone(), told), charge);
                    entered.map(|removed| (node, tree.get(node).map_or(0, |found| found.ino), removed))
                }
            }
        };
        match entered {
            Ok((node, ino, removed)) => {
                self.dispose(removed);
                Ok(self.entry(node, ino, &facts))
            }
            Err((errno, charge)) => {
                drop(charge);
                Err(errno.into())
            }
        }
    }

    /// Notes that a name belonged to nothing, or to something else, at a time.
    pub(super) fn unlink(&self, parent: NodeId, name: &str, at: Instant) {
        self.open_listings.outdate_name(parent, name);
        if let Some(lists) = self.lists() {
            let removed = self.tree.lock().unlink(lists, parent, name, at);
            self.dispose(removed);
        }
    }

    /// Returns the inode number and the facts of a node, after asking the store if `must_ask` finds
    /// them too old. May sleep for the store.
    ///
    /// # Errors
    /// `ENOENT` when it is gone, `ESTALE` when something else has its name; the store's.
    pub(super) fn facts(
        &self,
        node: NodeId,
        must_ask: impl FnOnce(Told) -> bool,
    ) -> Result<(u64, Facts), VfsError> {
        let told = Told { at: Instant::now(), thread: 0 };
        let (path, ino) = {
            let tree = self.tree.lock();
            let found = tree.get(node)?;
            let is_directory = matches!(found.facts, Facts::Directory(_));
            if is_directory || found.is_staged() || !must_ask(found.told) {
                return Ok((found.ino, found.shown()));
            }
            (tree.path(node)?, found.ino)
        };
        assert_no_locks_held("a request to a store");
        match self.bucket.find(&path) {
            Ok(Some(info)) => {
                let facts = Facts::Object(self.shown.kept(&info));
                {
                    let mut tree = self.tree.lock();
                    let found = tree.get_mut(node)?;
                    if found.is_staged() || found.facts.is_same(&facts) {
                        if told.at >= found.told.at && !found.is_staged() {
                            found.facts.learn(&facts);
                            // An empty object may be a directory by now, which only a lookup finds.
                            if !may_mark_directory(&info, &*self.bucket) {
                                found.told = told;
                            }
                        }
                        if let Some(content) = &found.content {
                            content.is_outdated.store(false, Ordering::Relaxed);
                            content.learn(found.facts.attributes());
                        }
                        return Ok((ino, found.shown()));
                    }
                    if found.told.at > told.at {
                        // It was stored from here while the store answered.
                        return Ok((ino, found.shown()));
                    }
                }
                // The kernel looks the name up again, and finds another node.
                self.unlink_node(node, told.at);
                Err(Errno::STALE.into())
            }
            Ok(None) => {
                self.unlink_node(node, told.at);
                Err(Errno::NOENT.into())
            }
            Err(error) => Err(self.failures.report(&error).into()),
        }
    }

    /// As [`unlink`](Self::unlink), of the name of a node.
    pub(super) fn unlink_node(&self, node: NodeId, at: Instant) {
        let place = self.tree.lock().name_of(node);
        if let Some((parent, name)) = place {
            self.unlink(parent, &name, at);
        }
    }

    /// Returns the content of an object as it is now, and pins the node. May sleep for memory and
    /// for the store.
    pub(super) fn open(&self, caller: &Caller, node: NodeId) -> Result<Arc<Content>, VfsError> {
        if let Some(content) = self.open_removed(node) {
            return Ok(content);
        }
        let _scope = TenantScope::of(&caller.group);
        self.tree.lock().pin(node)?;
        let opened = self.content_of(caller, node);
        if opened.is_err() {
            self.unpin(node);
        }
        opened
    }

    /// Opens a removed file that is still open elsewhere.
    fn open_removed(&self, node: NodeId) -> Option<Arc<Content>> {
        let mut tree = self.tree.lock();
        let found = tree.get_used_mut(node).filter(|found| found.was_removed && found.pins > 0)?;
        let content = found.content.clone()?;
        found.pins += 1;
        Some(content)
    }

    fn content_of(&self, caller: &Caller, node: NodeId) -> Result<Arc<Content>, VfsError> {
        let is_outdated = self.tree.lock().get(node)?.is_outdated();
        let (_, facts) = self.facts(node, |told| is_outdated || self.must_open_ask(told, caller))?;
        if matches!(facts, Facts::Directory(_)) {
            return Err(Errno::ISDIR.into());
        }
        for _ in 0..NR_LOOKUPS_MAX {
            let (key, facts) = {
                let mut tree = self.tree.lock();
                let found = tree.get_mut(node)?;
                // The answer to a lookup counts for one open.
                found.told.thread = 0;
                if let Some(known) = &found.content {
                    return Ok(Arc::clone(known));
                }
                let facts = found.facts.clone();
                (tree.path(node)?, facts)
            };
            let Facts::Object(info) = &facts else { return Err(Errno::ISDIR.into()) };
            let from = (&self.bucket, self.store_id, &self.failures);
            let effort = self.charge_effort();
            let fresh = Content::new(effort, &self.engine, &caller.group, from, (key.clone(), info))?;
            let mut tree = self.tree.lock();
            let is_there = tree.path(node)? == key;
            let found = tree.get_mut(node)?;
            // Another open may have been faster, also to write; then ours is dropped without the
            // lock.
            if found.content.is_some() || is_there && found.facts.is_same(&facts) {
                let content = Arc::clone(found.content.get_or_insert_with(|| Arc::clone(&fresh)));
                drop(tree);
                return Ok(content);
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Gives back the pin of [`open`](Self::open) or of an open directory.
    pub(super) fn unpin(&self, node: NodeId) {
        let has_pages = self.has_pages(node);
        let removed = self.tree.lock().unpin(self.lists(), node, has_pages);
        self.dispose(removed);
    }

    /// Releases lookups of the kernel.
    pub(super) fn forget(&self, node: NodeId, nr_lookups: u64) {
        let Some(lists) = self.lists() else { return };
        let has_pages = self.has_pages(node);
        let copy = self.tree.lock().kernel_copy(node);
        let copy = copy.map(|copy| (copy.pages.moment(), copy));
        let (removed, is_looked_up) = {
            let mut tree = self.tree.lock();
            let removed = tree.forget(lists, node, nr_lookups, has_pages);
            (removed, tree.is_looked_up(node))
        };
        if let Some((moment, copy)) = copy.filter(|_| !is_looked_up) {
            // The pages went with the kernel's inode; newer ones came to another inode.
            copy.pages.forget_before(moment);
        }
        self.dispose(removed);
    }

    /// Returns whether the daemon has pages of a node.
    fn has_pages(&self, node: NodeId) -> bool {
        let cached = self.tree.lock().get(node).map(Node::cached);
        cached.is_ok_and(|cached| cached.has_own_pages())
    }

    /// Returns the kernel's copy of a pinned node; `None` where the kernel keeps no pages. No lock
    /// may be held.
    pub(super) fn kernel_copy(&self, node: NodeId, group: &Group) -> Option<Arc<KernelCopy>> {
        let lists = self.kernel_page_lists.get()?;
        let known = self.tree.lock().kernel_copy(node);
        known.or_else(|| {
            let fresh = KernelCopy::new(lists, node, group);
            // Another open may have been faster; then this one is dropped without the lock.
            let mut tree = self.tree.lock();
            tree.kernel_copy_or(node, &fresh)
        })
    }

    /// Releases the remains of names, with no lock held.
    pub(super) fn dispose(&self, removed: Vec<Removed>) {
        for gone in removed {
            let asked = gone.asked;
            drop(gone);
            // Only after the release of the charge: reclaim may wait for this note.
            if let Some((owner, bytes)) = asked {
                owner.with_group(|group| self.engine.reclaimer().note_released(group, bytes));
            }
        }
    }

    pub(super) fn entry(&self, node: NodeId, ino: u64, facts: &Facts) -> Entry {
        Entry { node, generation: 0, attr: self.shown.attr(ino, facts) }
    }

    /// Returns the attributes of a node. May sleep for the store.
    pub(super) fn getattr(&self, node: NodeId) -> Result<Attr, VfsError> {
        // The file is open without a name, and the store knows nothing of it.
        let removed = self.tree.lock().removed(node).map(|found| (found.ino, found.shown()));
        if let Some((ino, facts)) = removed {
            return Ok(Attr { nlink: 0, ..self.shown.attr(ino, &facts) });
        }
        let (ino, facts) = self.facts(node, |told| !self.is_believed(told))?;
        Ok(self.shown.attr(ino, &facts))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Some(lists) = self.lists.get_mut() {
            lists.unregister();
        }
        let removed = self.tree.get_mut().take_all(self.lists.get());
        drop(removed);
    }
}
