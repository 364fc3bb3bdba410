//! [`Account`]: the memory of one query, buffer pool or connection, charged to a group.

use std::fmt;
use std::sync::Arc;

use umemcg_group::{Group, Holding, Refused};

use super::{Engine, Refusal};
use crate::commitments::Change;

/// The embedder's own memory, charged to a group, such as the buffers of a query. Any number of
/// threads grow and shrink it; dropping it gives everything back.
///
/// Growing and shrinking by a few pages takes no lock and only one atomic instruction, on the
/// account's own counter. The bytes are counted as `anon` and `unevictable` in `memory.stat`. When
/// the group is removed, they belong to its parent from then on, and so does later growth.
///
/// ```
/// use std::ffi::OsStr;
/// use umemcg::{Engine, EngineConfig, Refusal};
///
/// let engine = Engine::new(EngineConfig::new(64 << 20))?;
/// let tenant = engine.create_group(engine.root(), OsStr::new("tenant"))?;
/// engine.set_max(&tenant, 8 << 20);
///
/// let sort = engine.account(&tenant);
/// sort.try_grow(6 << 20)?;
/// match sort.try_grow(4 << 20) {
///     Err(Refusal::NotNow { wanted, free, .. }) => assert!(free < wanted), // time to spill
///     other => panic!("{other:?}"),
/// }
/// sort.shrink(5 << 20); // spilled
/// sort.try_grow(4 << 20)?;
/// assert_eq!((sort.bytes(), sort.peak()), (5 << 20, 6 << 20));
///
/// let merge = sort.split(1 << 20);
/// drop(sort);
/// assert_eq!(merge.bytes(), 1 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped account gives everything back"]
pub struct Account {
    held: Holding,
    engine: Arc<Engine>,
}

/// The action of a growth without room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// It reclaims, and a refusal counts a `max` event.
    Reclaims,
    /// It reclaims; an earlier refusal has been counted.
    ReclaimsAgain,
    /// It fails at once.
    Takes,
}

impl Account {
    pub(super) fn new(engine: &Arc<Engine>, group: &Arc<Group>) -> Self {
        Self { held: Holding::new(Arc::clone(group)), engine: Arc::clone(engine) }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the group of the account.
    #[inline]
    pub fn group(&self) -> &Arc<Group> {
        self.held.group()
    }

    /// Returns the bytes held now.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Returns the peak of the bytes held.
    pub fn peak(&self) -> u64 {
        self.held.peak_bytes()
    }

    /// Grows by `bytes`. If a group is full, first reclaims the missing bytes from caches of that
    /// group, down to the guarantees of the groups below it. Reclaim takes about a microsecond for
    /// each page, and never waits. Leaves room for the guarantees of other groups. No lock of this
    /// library may be held.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is changed then. Counts at most one `max` event, and no `oom` event.
    #[inline]
    pub fn try_grow(&self, bytes: u64) -> Result<(), Refusal> {
        // The result is constructed here, not passed on: copying it costs as much as the growth.
        match self.grow_at_once(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => self.try_grow_slowly(bytes, None),
            Err(refused) => self.try_grow_slowly(bytes, Some(refused)),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_grow_slowly(&self, bytes: u64, refused: Option<Refused>) -> Result<(), Refusal> {
        self.grow_slowly(bytes, Effort::Reclaims, refused).inspect_err(|refusal| {
            self.engine.reclaimer().note_refused_growth(self.group(), bytes, refusal);
        })
    }

    pub(super) fn grow_with(&self, bytes: u64, effort: Effort) -> Result<(), Refusal> {
        match self.grow_at_once(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => self.grow_slowly(bytes, effort, None),
            Err(refused) => self.grow_slowly(bytes, effort, Some(refused)),
        }
    }

    /// Grows if the growth takes nothing from others; see [`Holding::try_grow_if`].
    #[inline]
    fn grow_at_once(&self, bytes: u64) -> Result<bool, Refused> {
        self.held.try_grow_if(bytes, || self.leaves_room(Change::HeldAndCounted(bytes)))
    }

    /// Returns whether a change of the account leaves room for the guarantees of other groups.
    #[inline]
    fn leaves_room(&self, change: Change) -> bool {
        !self.engine.commitments.is_any() || self.check(change, 0).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn check(&self, change: Change, wanted: u64) -> Result<(), Refusal> {
        let result = self.engine.commitments.check(self.group(), change);
        result.map_err(|refused| {
            let never = Refusal::never(self.group(), wanted);
            never.unwrap_or_else(|| Refusal::overcommitted(refused, wanted))
        })
    }

    /// Checks that a growth by `bytes` leaves room for the guarantees of other groups.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), Refusal> {
        if self.engine.commitments.is_any() { self.check(Change::Held(bytes), bytes) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn grow_slowly(&self, bytes: u64, effort: Effort, refused: Option<Refused>) -> Result<(), Refusal> {
        // Two concurrent growths see each other. One of them may fit when the other has given back.
        self.grow_beside_others(bytes, effort, refused)?.or_else(|_| {
            let effort = if effort == Effort::Reclaims { Effort::ReclaimsAgain } else { effort };
            self.grow_beside_others(bytes, effort, None)?
        })
    }

    /// Grows by `bytes`. The inner result says whether that leaves room for the guarantees of other
    /// groups. If not, because other accounts have grown meanwhile, the bytes are given back.
    fn grow_beside_others(
        &self,
        bytes: u64,
        effort: Effort,
        refused: Option<Refused>,
    ) -> Result<Result<(), Refusal>, Refusal> {
        // Check first, to avoid useless reclaim.
        self.check_room(bytes)?;
        let is_counted = effort == Effort::ReclaimsAgain;
        let result = match refused.map_or_else(|| self.held.try_grow(bytes), Err) {
            Err(refused) if effort != Effort::Takes => {
                self.engine.reclaimer().grow_after_refusal(&self.held, bytes, refused, is_counted)
            }
            result => result,
        };
        result.map_err(|refused| Refusal::of(self.group(), &refused))?;
        if !self.engine.commitments.is_any() {
            return Ok(Ok(()));
        }
        let checked = self.check(Change::HeldAndCounted(bytes), bytes);
        Ok(checked.inspect_err(|_| self.shrink(bytes)))
    }

    /// Grows by `bytes` whatever the limits, for memory already in use. Never blocks and never
    /// fails; usage may be above limits afterwards, until something is given back.
    ///
    /// # Panics
    /// When `bytes` is more than 2^56.
    pub fn grow(&self, bytes: u64) {
        self.held.grow_forced(bytes);
    }

    /// Gives `bytes` back. Never blocks.
    ///
    /// # Panics
    /// When it holds less; nothing is changed then.
    #[inline]
    pub fn shrink(&self, bytes: u64) {
        self.held.shrink(bytes);
        self.note_given_back();
    }

    /// Gives everything back; returns the number of bytes. Never blocks.
    pub fn clear(&self) -> u64 {
        let bytes = self.held.clear();
        if bytes > 0 {
            self.note_given_back();
        }
        bytes
    }

    #[inline]
    fn note_given_back(&self) {
        if self.engine.waits.is_any() {
            self.engine.waits.note_given_back(self.group());
        }
    }

    /// Takes over the bytes of another account of the same group.
    ///
    /// # Panics
    /// When the other account is of another group.
    pub fn merge(&self, other: Account) {
        assert!(Arc::ptr_eq(self.group(), other.group()), "accounts of two groups cannot become one");
        self.held.absorb(&other.held);
    }

    /// Moves `bytes` to an account of their own in the same group. Charges nothing, so it cannot be
    /// refused.
    ///
    /// # Panics
    /// When it holds less; nothing is changed then.
    pub fn split(&self, bytes: u64) -> Account {
        Account { held: self.held.split(bytes), engine: Arc::clone(&self.engine) }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("group", &self.group().path())
            .field("bytes", &self.bytes())
            .field("peak", &self.peak())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens an account in a group, with nothing in it.
    pub fn account(self: &Arc<Self>, group: &Arc<Group>) -> Account {
        Account::new(self, group)
    }
}
