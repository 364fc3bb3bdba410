//! Engines, and the version of the library.

use std::ffi::c_char;
use std::sync::Arc;

use umemcg::{Engine, EngineConfig};
use umemcg_bindings::{Code, Failure, process};

use crate::call::call_outside_callbacks;
use crate::objects::{EnginePart, Object, add, free_engine, with};
use crate::pointers::{SizedStruct, read_sized, result_place};

/// An engine: a pool of memory and a tree of groups. As with every handle, 0 is no engine.
pub type umemcg_engine = u64;

/// The version of this header's library.
pub const UMEMCG_VERSION_MAJOR: u32 = 0;
/// See `UMEMCG_VERSION_MAJOR`.
pub const UMEMCG_VERSION_MINOR: u32 = 1;
/// See `UMEMCG_VERSION_MAJOR`.
pub const UMEMCG_VERSION_PATCH: u32 = 0;
/// The number in the library's soname. Programs work with every library of the same number.
pub const UMEMCG_ABI_VERSION: u32 = 0;

/// No limit. As a result: no limit is set.
pub const UMEMCG_UNLIMITED: u64 = u64::MAX;

/// The pool has watermarks from the start, so that callers usually need not reclaim when it is
/// full.
pub const UMEMCG_ENGINE_POOL_MARKS: u32 = 1;
/// Protection that no child claims is not handed down to the children.
pub const UMEMCG_ENGINE_FLAT_PROTECTION: u32 = 2;

/// The configuration of an engine. Zero in a field is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct umemcg_engine_config {
    /// `sizeof(umemcg_engine_config)`.
    pub size: usize,
    /// Bytes of the pool, which is the limit of the root group; 0 means 256 MiB.
    pub pool_bytes: u64,
    /// Threads that reclaim in the background; 0 means one for each processor, four at most.
    pub nr_workers: u32,
    /// `UMEMCG_ENGINE_…`, or'ed.
    pub flags: u32,
}

impl SizedStruct for umemcg_engine_config {
    const SIZE_MIN: usize = size_of::<Self>();
}

/// Returns the version of the library, such as `0.1.0`; valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the number of the library's binary interface, `UMEMCG_ABI_VERSION` of its header.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_abi_version() -> u32 {
    UMEMCG_ABI_VERSION
}

/// Default size of a pool, in bytes.
const POOL_BYTES_DEFAULT: u64 = 256 << 20;
/// The largest number of workers.
const NR_WORKERS_MAX: u32 = 1024;

/// Starts an engine. `config` may be null for the defaults. Memory of the pool is taken as it is
/// used. Errors: `INVALID_ARGUMENT` for a pool below 2 MiB or beyond the address space, `SYSTEM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_engine_new(
    config: *const umemcg_engine_config,
    engine: *mut umemcg_engine,
) -> Code {
    call_outside_callbacks(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(engine, 0) }?;
        let wanted = if config.is_null() {
            umemcg_engine_config::default()
        } else {
            // SAFETY: [10] As the header says.
            unsafe { read_sized(config) }?
        };
        if wanted.flags & !(UMEMCG_ENGINE_POOL_MARKS | UMEMCG_ENGINE_FLAT_PROTECTION) != 0 {
            return Err(Failure::invalid(format!("flags {:#x} of an engine are unknown", wanted.flags)));
        }
        // Twice the address space of a process, so never a real pool.
        if wanted.pool_bytes > 1 << 48 || wanted.nr_workers > NR_WORKERS_MAX {
            return Err(Failure::invalid("the pool or the number of workers is too large"));
        }
        let pool_bytes = if wanted.pool_bytes == 0 { POOL_BYTES_DEFAULT } else { wanted.pool_bytes };
        // Objects and charges alone: C has no files.
        let config = EngineConfig::new(pool_bytes)
            .pages(false)
            .nr_kswapd(wanted.nr_workers as usize)
            .pool_marks(wanted.flags & UMEMCG_ENGINE_POOL_MARKS != 0)
            .recursive_protection(wanted.flags & UMEMCG_ENGINE_FLAT_PROTECTION == 0);
        process::watch_forks()?;
        let part = EnginePart::new(Engine::new(config)?);
        *place = add(Object::Engine(part))?;
        Ok(())
    })
}

/// Frees an engine with everything that belongs to it, except held values. The handles of all freed
/// objects name nothing afterwards, and their charges are given back. Waits for running callbacks.
/// No callback runs after it returns, unless another thread is still in a call using the engine.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_engine_free(engine: umemcg_engine) -> Code {
    call_outside_callbacks(|| free_engine(engine))
}

/// Does a round of housekeeping now: returns free memory to the operating system. Takes
/// milliseconds for each hundred megabytes.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_engine_trim(engine: umemcg_engine) -> Code {
    call_outside_callbacks(|| {
        with(engine, |part: &Arc<EnginePart>| {
            part.engine.trim();
            Ok(())
        })
    })
}
