//! Caches of bytes by bytes.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use umemcg::ObjectCache;
use umemcg::objects::{ObjectCacheBuilder, RemovalCause, allocated_bytes};
use umemcg_bindings::callbacks::inside;
use umemcg_bindings::{Code, Failure};

use crate::call::{call, call_outside_callbacks};
use crate::callback::{UserData, umemcg_free_fn};
use crate::engine_functions::umemcg_engine;
use crate::group_functions::umemcg_group;
use crate::objects::{
    CachePart, EnginePart, Key, Object, Value, ValuePart, add, add_with, free, with, with_group_of,
};
use crate::pointers::{SizedStruct, bytes, copy_out, read_sized, result_place, text, write_sized};

/// A cache of bytes by bytes. Each object is charged to the group that inserts it.
pub type umemcg_cache = u64;
/// A value held in place: it stays readable until it is freed, even after leaving the cache.
pub type umemcg_value = u64;

/// Why an object left a cache: its memory was needed.
pub const UMEMCG_REMOVED_EVICTED: i32 = 0;
/// It was too old.
pub const UMEMCG_REMOVED_EXPIRED: i32 = 1;
/// A caller removed it.
pub const UMEMCG_REMOVED_REMOVED: i32 = 2;
/// Another value took its place.
pub const UMEMCG_REMOVED_REPLACED: i32 = 3;
/// The value meant to replace it was refused.
pub const UMEMCG_REMOVED_OUTDATED: i32 = 4;

/// Called for every object leaving the cache. The bytes are valid until it returns. Runs on any
/// thread, with no lock of the library held, and may call functions that neither sleep nor reclaim.
pub type umemcg_removed_fn = Option<
    extern "C" fn(
        user: *mut c_void,
        key: *const c_void,
        key_len: usize,
        value: *const c_void,
        value_len: usize,
        why: i32,
    ),
>;

/// The configuration of a cache. Zero in a field is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct umemcg_cache_config {
    /// `sizeof(umemcg_cache_config)`.
    pub size: usize,
    /// The name in statistics; copied.
    pub name: *const c_char,
    /// Bounds the bytes of the whole cache, in addition to the limits of the groups; 0 means no
    /// bound.
    pub bytes_max: u64,
    /// Milliseconds after which objects expire, about 100 days at most; 0 means never.
    pub time_to_live_ms: u64,
    /// Milliseconds without use after which objects expire; 0 means never.
    pub time_to_idle_ms: u64,
    /// May be null.
    pub removed: umemcg_removed_fn,
    /// The first argument of `removed`.
    pub user: *mut c_void,
    /// Called once with `user` when `removed` cannot be called any more; may be null. Not called if
    /// the cache was not made.
    pub free_user: umemcg_free_fn,
}

impl SizedStruct for umemcg_cache_config {
    const SIZE_MIN: usize = size_of::<Self>();
}

impl Default for umemcg_cache_config {
    fn default() -> Self {
        let (size, name, user) = (size_of::<Self>(), std::ptr::null(), std::ptr::null_mut());
        let (bytes_max, time_to_live_ms, time_to_idle_ms) = (0, 0, 0);
        Self { size, name, bytes_max, time_to_live_ms, time_to_idle_ms, removed: None, user, free_user: None }
    }
}

/// Statistics of a cache.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct umemcg_cache_statistics {
    /// `sizeof(umemcg_cache_statistics)`; set by the caller.
    pub size: usize,
    /// Objects in the cache.
    pub nr_objects: u64,
    /// Bytes charged for them.
    pub bytes: u64,
    /// Bytes of held values that have left the cache; they stay charged.
    pub held_bytes: u64,
    /// Look-ups that found an object.
    pub nr_hits: u64,
    /// Look-ups that found none; not counted for a single group.
    pub nr_misses: u64,
    /// Objects that were inserted.
    pub nr_inserted: u64,
    /// Objects refused for lack of room.
    pub nr_refused: u64,
    /// Objects that were evicted because memory was needed.
    pub nr_evicted: u64,
    /// Objects that expired.
    pub nr_expired: u64,
    /// Objects that a caller removed.
    pub nr_removed: u64,
    /// Objects whose key was inserted again.
    pub nr_replaced: u64,
}

impl SizedStruct for umemcg_cache_statistics {
    const SIZE_MIN: usize = size_of::<Self>();
}

fn number_of(why: RemovalCause) -> i32 {
    match why {
        RemovalCause::Evicted => UMEMCG_REMOVED_EVICTED,
        RemovalCause::Expired => UMEMCG_REMOVED_EXPIRED,
        RemovalCause::Replaced => UMEMCG_REMOVED_REPLACED,
        RemovalCause::Outdated => UMEMCG_REMOVED_OUTDATED,
        _ => UMEMCG_REMOVED_REMOVED,
    }
}

/// Two counts before the bytes of an `Arc`.
const ARC_BYTES: u64 = 16;

/// Makes a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_cache_new(
    engine: umemcg_engine,
    config: *const umemcg_cache_config,
    cache: *mut umemcg_cache,
) -> Code {
    call_outside_callbacks(|| {
        // SAFETY: [10] As the header says.
        let (place, config) = unsafe { (result_place(cache, 0)?, read_sized(config)?) };
        // SAFETY: [10] As the header says.
        let name = unsafe { text(config.name) }?;
        let user = UserData::new(config.user, config.free_user);
        *place = with(engine, |part: &Arc<EnginePart>| {
            let builder: ObjectCacheBuilder<Key, Value> = ObjectCache::builder(&part.engine, name);
            let mut builder = builder
                .weigher(|key, value| allocated_bytes(key.len() as u64) + value.len() as u64 + ARC_BYTES);
            if config.bytes_max != 0 {
                builder = builder.bytes_max(config.bytes_max);
            }
            if config.time_to_live_ms != 0 {
                builder = builder.time_to_live(Duration::from_millis(config.time_to_live_ms));
            }
            if config.time_to_idle_ms != 0 {
                builder = builder.time_to_idle(Duration::from_millis(config.time_to_idle_ms));
            }
            if let Some(removed) = config.removed {
                let user = Arc::clone(&user);
                builder = builder.listener(move |key, value, why| {
                    let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
                    inside(|| {
                        removed(user.pointer(), key_at, key.len(), value_at, value.len(), number_of(why))
                    });
                });
            }
            let part =
                CachePart { engine: Arc::clone(part), cache: builder.build(), _user: Arc::clone(&user) };
            add_with(Object::Cache(part), || user.take_over())
        })?;
        Ok(())
    })
}

/// Frees a cache with its objects. Held values stay readable.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_cache_free(cache: umemcg_cache) -> Code {
    call_outside_callbacks(|| free::<CachePart>(cache))
}

/// Stores a copy of a value under a copy of its key, and charges both to a group; the key's
/// previous value goes. May reclaim, and so may sleep. Errors: `REFUSED` with the group that has no
/// room; the key has no value then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_cache_insert(
    cache: umemcg_cache,
    group: umemcg_group,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> Code {
    call_outside_callbacks(|| {
        with(cache, |part: &CachePart| {
            let len_max = part.engine.pool_bytes();
            // SAFETY: [10] As the header says.
            let (key, value) = unsafe { (bytes(key, key_len, len_max)?, bytes(value, value_len, len_max)?) };
            with_group_of(&part.engine, group, |group| {
                let wanted = key.len() as u64 + value.len() as u64;
                let stored = part.cache.insert(&group.group, Box::from(key), Arc::from(value));
                stored.map_err(|declined| Failure::declined(&declined.reason, wanted))
            })
        })
    })
}

fn not_found() -> Failure {
    Failure::new(Code::NotFound, "the key has no value")
}

/// Copies the value of a key to `value`, which has room for `room` bytes; `*value_len` becomes its
/// length. Errors: `NOT_FOUND`, and `TOO_SMALL`, which writes only `*value_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_cache_get(
    cache: umemcg_cache,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    room: usize,
    value_len: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        unsafe { result_place(value_len, 0) }?;
        with(cache, |part: &CachePart| {
            // SAFETY: [10] As the header says.
            let key = unsafe { bytes(key, key_len, part.engine.pool_bytes()) }?;
            let found = part.cache.get(key).ok_or_else(not_found)?;
            // SAFETY: [10] As the header says.
            let fits = unsafe { copy_out(&found, value, room, value_len) }?;
            if fits { Ok(()) } else { Err(Failure::new(Code::TooSmall, "the value is longer than the room")) }
        })
    })
}

/// Holds the value of a key in place, without a copy: `*data` and `*len` are its bytes, readable
/// until `*value` is freed. The value stays charged to its group until then, even after leaving the
/// cache. Errors: `NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_cache_hold(
    cache: umemcg_cache,
    key: *const c_void,
    key_len: usize,
    value: *mut umemcg_value,
    data: *mut *const c_void,
    len: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let (place, data, len) = unsafe {
            (result_place(value, 0)?, result_place(data, std::ptr::null())?, result_place(len, 0)?)
        };
        with(cache, |part: &CachePart| {
            // SAFETY: [10] As the header says.
            let key = unsafe { bytes(key, key_len, part.engine.pool_bytes()) }?;
            let value = part.cache.get_pinned(key).ok_or_else(not_found)?;
            let (at, nr) = (value.as_ptr(), value.len());
            let held = ValuePart { _value: value, _engine: Arc::clone(&part.engine.engine) };
            *place = add(Object::Value(held))?;
            (*data, *len) = (at.cast(), nr);
            Ok(())
        })
    })
}

/// Releases a held value.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_value_free(value: umemcg_value) -> Code {
    call(|| free::<ValuePart>(value))
}

/// Removes a key. Errors: `NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_cache_remove(
    cache: umemcg_cache,
    key: *const c_void,
    key_len: usize,
) -> Code {
    call(|| {
        with(cache, |part: &CachePart| {
            // SAFETY: [10] As the header says.
            let key = unsafe { bytes(key, key_len, part.engine.pool_bytes()) }?;
            part.cache.remove(key).map(drop).ok_or_else(not_found)
        })
    })
}

/// Removes all objects.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_cache_clear(cache: umemcg_cache) -> Code {
    call(|| {
        with(cache, |part: &CachePart| {
            part.cache.clear();
            Ok(())
        })
    })
}

/// Writes the statistics of a cache to `*statistics`, for the objects of one group, or for all
/// objects if `group` is 0. Set `statistics->size` first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_cache_statistics_of(
    cache: umemcg_cache,
    group: umemcg_group,
    statistics: *mut umemcg_cache_statistics,
) -> Code {
    call(|| {
        with(cache, |part: &CachePart| {
            let stats = if group == 0 {
                part.cache.stats()
            } else {
                with_group_of(&part.engine, group, |group| Ok(part.cache.stats_of(&group.group)))?
            };
            let told = umemcg_cache_statistics {
                size: size_of::<umemcg_cache_statistics>(),
                nr_objects: stats.objects,
                bytes: stats.bytes,
                held_bytes: stats.pinned_bytes,
                nr_hits: stats.hits,
                nr_misses: stats.misses,
                nr_inserted: stats.inserted,
                nr_refused: stats.declined,
                nr_evicted: stats.evicted,
                nr_expired: stats.expired,
                nr_removed: stats.removed,
                nr_replaced: stats.replaced,
            };
            // SAFETY: [10] As the header says.
            unsafe { write_sized(statistics, told) }
        })
    })
}
