//! A request of the kernel that may put pages of a file into its page cache.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use umemcg::files::File;
use umemcg::internal::{CurrentRequest, HoldsUp};
use umemcg::{Charge, ChargeEffort, Engine, Group};
use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

use crate::kernel_listing::{KernelListing, ListedPart};
use crate::kernel_page_lists::awaits_drops;
use crate::kernel_pages::KernelPages;
use crate::page_windows::page_range;

/// A request holding up a drop does not wait for it while its group is at most this far beyond its
/// limit, in bytes. Beyond that it waits for a bounded time: the kernel may be waiting for others.
const EXCESS_MAX_BYTES: u64 = 256 * PAGE_SIZE_U64;

/// How the kernel is to cache a newly opened file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCaching {
    /// Not at all: every read and write comes here.
    Bypass,
    /// The kernel's cached pages are good.
    Keep,
    /// The kernel's cached pages and attributes are out of date.
    Refill,
}

#[derive(Debug)]
struct Terms {
    payer: Arc<Group>,
    /// The charge for the kernel's copy, made before the request was carried out.
    prepaid: Option<Charge>,
    /// Whether the kernel is to drop its copy as soon as it can.
    drops_behind: bool,
    /// Of a listing: the pages of the names in the answer.
    listed: Range<u64>,
}

/// Content whose bytes may move to another file during a request.
pub(crate) trait ContentFiles: Send + Sync + fmt::Debug {
    /// Returns the file with the bytes, and the file that had them before, if any.
    fn files(&self) -> (&Arc<File>, Option<&Arc<File>>);
}

/// The owner of the pages: a file, or a directory listing.
#[derive(Debug)]
pub(crate) enum Subject {
    File(Arc<File>),
    Content(Arc<dyn ContentFiles>),
    Directory(Arc<KernelListing>),
}

/// A READ, a WRITE or a READDIR through the kernel's page cache, from its arrival until its answer.
/// The value is dropped after the answer, with nothing pinned. Then the frames it has read go back,
/// and the kernel's pages are charged to the payer, regardless of the answer: the kernel may have
/// them even after an error.
#[derive(Debug)]
pub struct KernelIo {
    pages: Arc<KernelPages>,
    subject: Subject,
    offset: u64,
    len: u64,
    number: u64,
    /// The file's last change followed by a complete drop, when the request began.
    nr_answered: u64,
    terms: LeafMutex<Terms>,
}

impl Terms {
    fn of(payer: &Arc<Group>) -> LeafMutex<Self> {
        let payer = Arc::clone(payer);
        LeafMutex::new(Self { payer, prepaid: None, drops_behind: false, listed: 0..0 })
    }
}

impl KernelIo {
    /// Begins a request about `len` bytes from `offset` on.
    pub(crate) fn begin(
        pages: Arc<KernelPages>,
        subject: Subject,
        (offset, len): (u64, u64),
        is_write: bool,
        payer: &Arc<Group>,
    ) -> Self {
        let nr_answered = pages.nr_answered();
        let number = pages.begin(&page_range(offset, len), is_write);
        Self { pages, subject, offset, len, number, nr_answered, terms: Terms::of(payer) }
    }

    /// Begins a request to list names from a position on. Returns the expected part of the listing,
    /// for [`listed`](Self::listed).
    pub(crate) fn begin_listing(
        listing: Arc<KernelListing>,
        position: u64,
        payer: &Arc<Group>,
    ) -> (Self, ListedPart) {
        let part = listing.part_at(position);
        let pages = Arc::clone(&listing.pages);
        let nr_answered = pages.nr_answered();
        let number = pages.begin(&part.pages(), false);
        let subject = Subject::Directory(listing);
        (Self { pages, subject, offset: 0, len: 0, number, nr_answered, terms: Terms::of(payer) }, part)
    }

    /// Notes the names in the answer to a listing request.
    pub fn listed(&self, part: &ListedPart) {
        if let Subject::Directory(listing) = &self.subject {
            listing.note(part);
            self.terms.lock().listed = part.pages();
        }
    }

    /// Sets the group that pays.
    pub fn paid_by(&self, group: &Arc<Group>) {
        self.terms.lock().payer = Arc::clone(group);
    }

    /// Charges the kernel's copy of the data about to be written. Returns `false` if the group has
    /// no room for the copy beside the written pages. May sleep for reclaim if `engine` is given;
    /// no lock may be held.
    pub fn charge_copy(&self, engine: Option<&Engine>, group: &Arc<Group>) -> bool {
        let bytes = self.pages.missing_bytes(&page_range(self.offset, self.len));
        if bytes == 0 {
            self.paid_by(group);
            return true;
        }
        let charge = match engine {
            Some(engine) => engine.charge_with(group, bytes, ChargeEffort::Opportunistic).ok(),
            None => group.try_charge(bytes).ok(),
        };
        let has_room = charge.is_some();
        let before = {
            let mut terms = self.terms.lock();
            terms.payer = Arc::clone(group);
            std::mem::replace(&mut terms.prepaid, charge)
        };
        drop(before);
        has_room
    }

    /// Makes this the request of this thread. The kernel has locked its pages, and may be waiting
    /// for its end.
    pub fn make_current(self: &Arc<Self>) -> CurrentRequest {
        let request: Weak<dyn HoldsUp> = Arc::downgrade(self) as _;
        CurrentRequest::begin(request)
    }

    /// Returns whether the paying group or an ancestor is over its limit.
    pub fn is_beyond_limit(&self) -> bool {
        let payer = Arc::clone(&self.terms.lock().payer);
        !payer.is_within_limits()
    }

    /// Returns whether the kernel is about to drop pages of the paying group, or of an ancestor,
    /// beyond its limit.
    pub fn awaits_drops(&self) -> bool {
        let payer = Arc::clone(&self.terms.lock().payer);
        awaits_drops(&payer)
    }

    /// Returns whether the pages of this write have been read during the write: the kernel may have
    /// the old data.
    pub fn is_crossed(&self) -> bool {
        self.pages.is_crossed(self.number)
    }

    /// Has the kernel drop its copy after the answer.
    pub fn drop_behind(&self) {
        self.terms.lock().drops_behind = true;
    }

    /// Gives back the frames of a file now copied in the kernel. Returns the pages the kernel may
    /// keep: it keeps none beyond the end.
    fn give_up(&self, file: &File) -> Range<u64> {
        file.give_up_clean(self.offset, self.len);
        let asked = page_range(self.offset, self.len);
        let file_end = file.len().div_ceil(PAGE_SIZE_U64);
        asked.start..asked.end.min(file_end.max(asked.start))
    }
}

impl HoldsUp for KernelIo {
    fn holds_up_release(&self) -> bool {
        let payer = Arc::clone(&self.terms.lock().payer);
        let has_room =
            |level: &Group| level.usage_bytes() <= level.max_bytes().saturating_add(EXCESS_MAX_BYTES);
        self.pages.holds_up_drop(self.number) && payer.ancestors().all(has_room)
    }
}

impl Drop for KernelIo {
    fn drop(&mut self) {
        let (payer, prepaid, drops_behind, listed) = {
            let mut terms = self.terms.lock();
            (Arc::clone(&terms.payer), terms.prepaid.take(), terms.drops_behind, terms.listed.clone())
        };
        let kept = match &self.subject {
            Subject::File(file) => self.give_up(file),
            Subject::Content(content) => {
                let (file, before) = content.files();
                if let Some(before) = before {
                    let _ = self.give_up(before);
                }
                self.give_up(file)
            }
            Subject::Directory(_) => listed,
        };
        let held = self.pages.end(self.number, &kept, &payer, prepaid);
        let note = |file: &File| {
            file.note_refaults(held.nr_returned);
            // The drop may include the pages of this request.
            if self.pages.drops_all_since(self.nr_answered) {
                file.note_dropped_above();
            }
        };
        match &self.subject {
            Subject::File(file) => note(file),
            Subject::Content(content) => note(content.files().0),
            Subject::Directory(_) => {}
        }
        if drops_behind || !held.has_room {
            self.pages.drop_shares(&kept, payer.owner());
        }
    }
}
