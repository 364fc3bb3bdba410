//! A request of the kernel that may put pages of a file into its page cache.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use umemcg::files::File;
use umemcg::{Charge, Engine, Group};
use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

use crate::kernel_listing::{KernelListing, ListedPart};
use crate::kernel_page_lists::awaits_drops;
use crate::kernel_pages::KernelPages;
use crate::page_windows::page_range;

/// How a file that is opened is to be cached by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCaching {
    /// Not at all: every read and write comes here.
    Bypass,
    /// What the kernel has of it is good.
    Keep,
    /// What the kernel has of it is out of date, attributes included.
    Refill,
}

#[derive(Debug)]
struct Terms {
    payer: Arc<Group>,
    /// Charged for the kernel's copy before the request was carried out.
    prepaid: Option<Charge>,
    /// The kernel is to drop its copy as soon as it can.
    drops_behind: bool,
    /// Of a listing: the pages of the names in the answer.
    listed: Range<u64>,
}

/// Content whose bytes may be in another file when a request ends than when it began.
pub(crate) trait ContentFiles: Send + Sync + fmt::Debug {
    /// Returns the file that has the bytes, and the one that had them before, if there was one.
    fn files(&self) -> (&Arc<File>, Option<&Arc<File>>);
}

/// What the pages are of.
#[derive(Debug)]
pub(crate) enum Subject {
    File(Arc<File>),
    Content(Arc<dyn ContentFiles>),
    Directory(Arc<KernelListing>),
}

/// A READ, a WRITE or a READDIR that goes through the kernel's page cache, from its arrival until
/// it has been answered. When it is dropped, after the answer and with nothing pinned, the frames
/// that it has read go back, and the kernel's pages are charged to the payer, whatever the answer
/// was: also after an error the kernel may have them.
#[derive(Debug)]
pub struct KernelIo {
    pages: Arc<KernelPages>,
    subject: Subject,
    offset: u64,
    len: u64,
    number: u64,
    /// The last change of the file after which the kernel had dropped all when the request began.
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

    /// Begins a request that lists names from a position on. Returns the part of the listing that
    /// it is to have, for [`listed`](Self::listed).
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

    /// Notes the names in the answer of a request that lists.
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

    /// Charges the kernel's copy of what is about to be written. Returns `false` if the group has
    /// not room for it beside the written pages. May sleep for reclaim if `engine` is given; no
    /// lock may be held.
    pub fn charge_copy(&self, engine: Option<&Engine>, group: &Arc<Group>) -> bool {
        let bytes = self.pages.missing_bytes(&page_range(self.offset, self.len));
        if bytes == 0 {
            self.paid_by(group);
            return true;
        }
        let charge = match engine {
            Some(engine) => engine.reclaimer().charge_opportunistic(group, bytes, &|| false).ok(),
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

    /// Returns whether the group that pays is over its limit, or one above.
    pub fn is_beyond_limit(&self) -> bool {
        let payer = Arc::clone(&self.terms.lock().payer);
        !payer.is_within_limits()
    }

    /// Returns whether the kernel is about to drop pages that the group that pays, or one above,
    /// has beyond its limit.
    pub fn awaits_drops(&self) -> bool {
        let payer = Arc::clone(&self.terms.lock().payer);
        awaits_drops(&payer)
    }

    /// Returns whether the kernel may wait for this request while it drops pages: it has locked those
    /// of the request.
    pub fn holds_up_drop(&self) -> bool {
        self.pages.holds_up_drop(&page_range(self.offset, self.len))
    }

    /// Returns whether the pages of this write have been read beside it: the kernel may have what
    /// was there before.
    pub fn is_crossed(&self) -> bool {
        self.pages.is_crossed(self.number)
    }

    /// Has the kernel drop its copy after the answer.
    pub fn drop_behind(&self) {
        self.terms.lock().drops_behind = true;
    }

    /// Gives back the frames of a file that the kernel has a copy of. Returns the pages that the
    /// kernel may keep: beyond the end it keeps nothing.
    fn give_up(&self, file: &File) -> Range<u64> {
        file.give_up_clean(self.offset, self.len);
        let asked = page_range(self.offset, self.len);
        let file_end = file.len().div_ceil(PAGE_SIZE_U64);
        asked.start..asked.end.min(file_end.max(asked.start))
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
            // The kernel may drop the pages of this request, too.
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
