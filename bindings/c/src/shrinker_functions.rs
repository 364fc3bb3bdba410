//! Shrinkers: caches of a program's own that give memory back when a group needs it.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::Arc;

use umemcg::Group;
use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_bindings::callbacks::inside;
use umemcg_bindings::{Code, Failure};

use crate::call::{call, call_outside_callbacks};
use crate::callback::{UserData, umemcg_free_fn};
use crate::engine_functions::umemcg_engine;
use crate::group_functions::umemcg_group;
use crate::objects::{EnginePart, Object, ShrinkerPart, add_with, free, with, with_group_of};
use crate::pointers::{SizedStruct, read_sized, result_place, text};

/// A registered shrinker.
pub type umemcg_shrinker = u64;

/// The target of a callback. Later versions may have more fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct umemcg_shrink_target {
    /// The number of the group; its child groups are not included. See `umemcg_group_id`.
    pub group_id: u64,
    /// The number of objects to scan.
    pub nr_objects: u64,
    /// The requested bytes: a scan may stop once it has freed as many.
    pub wanted_bytes: u64,
}

/// The result of a scan.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct umemcg_scanned {
    /// Scanned objects; 0 means that there are no more.
    pub nr_objects: u64,
    /// Bytes freed, and uncharged.
    pub freed_bytes: u64,
}

/// Returns the number of objects of the group that could be freed. 0 means no objects at all: the
/// function is not called again for that group before `umemcg_shrinker_announce`. A negative number
/// means that the number is unknown now. Must not block.
pub type umemcg_count_fn =
    Option<extern "C" fn(user: *mut c_void, target: *const umemcg_shrink_target) -> i64>;
/// Scans up to `nr_objects` objects of the target, frees the freeable ones and uncharges their
/// bytes. Writes the result to `*scanned`, which is zero before. Returns 0, or another number if no
/// progress can be made now.
pub type umemcg_scan_fn = Option<
    extern "C" fn(
        user: *mut c_void,
        target: *const umemcg_shrink_target,
        scanned: *mut umemcg_scanned,
    ) -> i32,
>;
/// Called after the removal of a group: its objects belong to the group above from now on.
pub type umemcg_reparent_fn = Option<extern "C" fn(user: *mut c_void, group_id: u64, parent_id: u64)>;

/// The configuration of a shrinker. Callbacks run on any thread, on several at once, with no lock
/// of the library held. They may call functions that neither sleep nor reclaim.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct umemcg_shrinker_config {
    /// `sizeof(umemcg_shrinker_config)`.
    pub size: usize,
    /// The name in statistics; copied.
    pub name: *const c_char,
    /// Must be set.
    pub count: umemcg_count_fn,
    /// Must be set.
    pub scan: umemcg_scan_fn,
    /// May be null.
    pub reparent: umemcg_reparent_fn,
    /// The first argument of the callbacks.
    pub user: *mut c_void,
    /// Called once with `user` when no callback can run any more; may be null. Not called if the
    /// shrinker was not made.
    pub free_user: umemcg_free_fn,
    /// The cost of making an object again, in seeks; 0 means 2.
    pub seeks: u32,
    /// Objects scanned at once; 0 means 128.
    pub batch: u32,
}

impl SizedStruct for umemcg_shrinker_config {
    const SIZE_MIN: usize = size_of::<Self>();
}

impl Default for umemcg_shrinker_config {
    fn default() -> Self {
        let (name, user) = (std::ptr::null(), std::ptr::null_mut());
        let (count, scan, reparent, free_user) = (None, None, None, None);
        Self { size: size_of::<Self>(), name, count, scan, reparent, user, free_user, seeks: 0, batch: 0 }
    }
}

/// Default cost of recreating an object, and default number of objects scanned at once.
const DEFAULT_SEEKS: u32 = 2;
const DEFAULT_BATCH: u64 = 128;

struct Callbacks {
    name: String,
    count: umemcg_count_fn,
    scan: umemcg_scan_fn,
    reparent: umemcg_reparent_fn,
    seeks: u32,
    batch: u64,
    user: Arc<UserData>,
    /// Upper bound of the freed bytes.
    pool_bytes: u64,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Callbacks {
    /// Calls the count function; `None` when the number is unknown.
    fn ask_count(&self, target: &ShrinkTarget<'_>) -> Option<u64> {
        let count = self.count?;
        let target = of(target, 0);
        u64::try_from(inside(|| count(self.user.pointer(), &raw const target))).ok()
    }
}

fn of(target: &ShrinkTarget<'_>, nr_objects: u64) -> umemcg_shrink_target {
    umemcg_shrink_target { group_id: target.group.id(), nr_objects, wanted_bytes: target.wanted_bytes }
}

impl Shrinker for Callbacks {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn seeks(&self) -> u32 {
        self.seeks
    }

    fn batch(&self) -> u64 {
        self.batch
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.ask_count(target) {
            None => Count::NothingNow,
            Some(0) => Count::Empty,
            Some(nr) => Count::Objects(nr),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let Some(scan) = self.scan else { return Scan::Stop };
        let target = of(target, nr);
        let mut scanned = umemcg_scanned::default();
        if inside(|| scan(self.user.pointer(), &raw const target, &raw mut scanned)) != 0 {
            return Scan::Stop;
        }
        // Impossible numbers are clamped, so that sums do not overflow.
        Scan::Done(Scanned {
            scanned: scanned.nr_objects.min(nr),
            freed_bytes: scanned.freed_bytes.min(self.pool_bytes),
            ..Scanned::default()
        })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let nr = self.ask_count(target).unwrap_or(0);
        Usage { objects: nr, reclaimable: nr, ..Usage::default() }
    }

    fn reparent(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        if let Some(reparent) = self.reparent {
            inside(|| reparent(self.user.pointer(), dying.id(), parent.id()));
        }
    }
}

/// Registers a shrinker. Its callbacks run for a group from `umemcg_shrinker_announce` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_shrinker_new(
    engine: umemcg_engine,
    config: *const umemcg_shrinker_config,
    shrinker: *mut umemcg_shrinker,
) -> Code {
    call_outside_callbacks(|| {
        // SAFETY: [10] As the header says.
        let (place, config) = unsafe { (result_place(shrinker, 0)?, read_sized(config)?) };
        // SAFETY: [10] As the header says.
        let name = unsafe { text(config.name) }?;
        if config.count.is_none() || config.scan.is_none() {
            return Err(Failure::invalid("a shrinker needs `count` and `scan`"));
        }
        let user = UserData::new(config.user, config.free_user);
        *place = with(engine, |part: &Arc<EnginePart>| {
            let name = name.split_whitespace().collect::<Vec<_>>().join("-");
            let callbacks: Arc<dyn Shrinker> = Arc::new(Callbacks {
                name,
                count: config.count,
                scan: config.scan,
                reparent: config.reparent,
                seeks: if config.seeks == 0 { DEFAULT_SEEKS } else { config.seeks },
                batch: if config.batch == 0 { DEFAULT_BATCH } else { config.batch.into() },
                user: Arc::clone(&user),
                pool_bytes: part.pool_bytes(),
            });
            let engine = &part.engine;
            let id = engine.reserve_shrinker();
            let part = ShrinkerPart {
                engine: Arc::clone(part),
                id: id.get(),
                _registration: engine.register_shrinker(id, Arc::clone(&callbacks)),
                _shrinker: callbacks,
                _user: Arc::clone(&user),
            };
            add_with(Object::Shrinker(part), || user.take_over())
        })?;
        Ok(())
    })
}

/// Announces that a shrinker has objects of a group. Call it whenever the group gets its first
/// object, after the count function can see it. Additional calls do no harm.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_shrinker_announce(shrinker: umemcg_shrinker, group: umemcg_group) -> Code {
    call(|| {
        with(shrinker, |part: &ShrinkerPart| {
            with_group_of(&part.engine, group, |group| {
                part.engine.engine.note_objects(&group.group, part.id);
                Ok(())
            })
        })
    })
}

/// Frees a shrinker. Waits for its callbacks running on other threads. None runs after it returns,
/// except the callback that made the call.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_shrinker_free(shrinker: umemcg_shrinker) -> Code {
    call(|| free::<ShrinkerPart>(shrinker))
}
