//! The Python class `ObjectCache`: a cache of bytes by bytes.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};
use umemcg::objects::{
    LoadGuard, LoadWait, Lookup, ObjectCacheBuilder, ObjectStats, RemovalCause, allocated_bytes,
};
use umemcg_bindings::{Failure, callbacks};

use crate::callbacks::{call, check_callable};
use crate::engine::Engine;
use crate::errors::to_python;
use crate::gate::detached;
use crate::group::{Group, given_or_current};
use crate::held::Held;
use crate::value::{pinned_view, view};

type Key = Box<[u8]>;
type Bytes = Arc<[u8]>;
type Cache = umemcg::ObjectCache<Key, Bytes>;

/// Two counts before the bytes of an `Arc`.
const ARC_BYTES: u64 = 16;

#[derive(Debug)]
struct CachePart {
    cache: Cache,
    engine: Arc<umemcg::Engine>,
}

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct ObjectCache {
    held: Held<CachePart>,
}

thread_local! {
    /// The loads of this thread: the caches, by address, and the keys.
    static LOADING: RefCell<Vec<(usize, Key)>> = const { RefCell::new(Vec::new()) };
}

/// Marks a key as being loaded by this thread until dropped.
struct Loading;

impl Loading {
    /// Fails if this thread is already loading that key: it would wait for itself.
    fn begin(cache: &CachePart, key: &Key) -> PyResult<Self> {
        LOADING.with_borrow_mut(|loading| {
            let this = (std::ptr::from_ref(cache) as usize, key.clone());
            if loading.contains(&this) {
                return Err(PyRuntimeError::new_err("`load` asks for the key that it loads"));
            }
            loading.push(this);
            Ok(Self)
        })
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        LOADING.with_borrow_mut(|loading| drop(loading.pop()));
    }
}

/// Copies the bytes of an object: `bytes`, `bytearray`, `memoryview`, or any other buffer of them.
fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match object.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => PyBuffer::<u8>::get(object)?.to_vec(object.py()),
    }
}

fn seconds(time: Option<f64>) -> PyResult<Option<Duration>> {
    let convert =
        |time| Duration::try_from_secs_f64(time).map_err(|error| PyValueError::new_err(error.to_string()));
    time.map(convert).transpose()
}

fn cause_name(why: RemovalCause) -> &'static str {
    match why {
        RemovalCause::Evicted => "evicted",
        RemovalCause::Expired => "expired",
        RemovalCause::Replaced => "replaced",
        RemovalCause::Outdated => "outdated",
        _ => "removed",
    }
}

fn with_listener(
    builder: ObjectCacheBuilder<Key, Bytes>,
    listener: Py<PyAny>,
) -> ObjectCacheBuilder<Key, Bytes> {
    builder.listener(move |key, value, why| {
        call(&listener, |listener| {
            let py = listener.py();
            listener.call1((PyBytes::new(py, &key), view(py, value)?, cause_name(why))).map(drop)
        });
    })
}

/// Longest time until a signal is handled while a thread waits.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Wakes a parked thread.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for another caller's load, with the interpreter's lock released. Signal handlers run
/// meanwhile; an exception raised by one ends the wait.
fn wait_for(
    py: Python<'_>,
    mut wait: LoadWait<Key, Bytes>,
) -> PyResult<Result<Bytes, LoadGuard<Key, Bytes>>> {
    let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
    loop {
        let polled = detached(py, || {
            let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                std::thread::park_timeout(SIGNALS_EVERY);
            }
            Ok(polled)
        })?;
        match polled {
            Poll::Ready(loaded) => return Ok(loaded),
            Poll::Pending => py.check_signals()?,
        }
    }
}

#[pymethods]
impl ObjectCache {
    #[new]
    #[pyo3(signature = (
        engine, name, *, bytes_max = None, time_to_live = None, time_to_idle = None, listener = None
    ))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        name: &str,
        bytes_max: Option<u64>,
        time_to_live: Option<f64>,
        time_to_idle: Option<f64>,
        listener: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        listener.as_ref().map_or(Ok(()), |listener| check_callable(listener, "listener"))?;
        let engine = engine.held.part(py)?;
        let builder: ObjectCacheBuilder<Key, Bytes> = Cache::builder(&engine, name);
        let mut builder =
            builder.weigher(|key, value| allocated_bytes(key.len() as u64) + value.len() as u64 + ARC_BYTES);
        if let Some(bytes) = bytes_max {
            builder = builder.bytes_max(bytes);
        }
        if let Some(time) = seconds(time_to_live)? {
            builder = builder.time_to_live(time);
        }
        if let Some(time) = seconds(time_to_idle)? {
            builder = builder.time_to_idle(time);
        }
        if let Some(listener) = listener {
            builder = with_listener(builder, listener.unbind());
        }
        let cache = detached(py, || Ok(builder.build()))?;
        Ok(Self { held: Held::new(CachePart { cache, engine: Arc::clone(&engine) }) })
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let part = self.held.part(py)?;
        let found = part.cache.get_pinned(&*bytes_of(key)?);
        found.map(|value| pinned_view(py, value, &part.engine)).transpose()
    }

    #[pyo3(signature = (key, value, group = None))]
    fn insert<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        group: Option<Bound<'py, Group>>,
    ) -> PyResult<()> {
        let part = self.held.part(py)?;
        let group = given_or_current(py, group)?.get().part_of(py, &part.engine)?;
        let (key, value) = (bytes_of(key)?, bytes_of(value)?);
        let wanted = (key.len() + value.len()) as u64;
        detached(py, || {
            let stored = part.cache.insert(&group.group, key.into(), value.into());
            stored.map_err(|declined| Failure::declined(&declined.reason, wanted))
        })
    }

    #[pyo3(signature = (key, load, group = None))]
    fn get_or_insert<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        load: Bound<'py, PyAny>,
        group: Option<Bound<'py, Group>>,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        check_callable(&load, "load")?;
        let part = self.held.part(py)?;
        let group = given_or_current(py, group)?.get().part_of(py, &part.engine)?;
        let key: Key = bytes_of(key)?.into();
        let _loading = Loading::begin(&part, &key)?;
        let found = detached(py, || Ok(part.cache.lookup(&group.group, key.clone())))?;
        let loads = match found {
            Lookup::Value(value) => Ok(value),
            Lookup::Load(guard) => Err(guard),
            Lookup::Wait(wait) => wait_for(py, wait)?,
        };
        let value = match loads {
            Ok(value) => value,
            Err(guard) => {
                let value = Bytes::from(bytes_of(&load.call0()?)?);
                detached(py, || Ok(guard.insert(value)))?
            }
        };
        // If the cache declined the value, or it is gone again, only the view holds it.
        match part.cache.peek_pinned(&key).filter(|pinned| Arc::ptr_eq(pinned, &value)) {
            Some(pinned) => pinned_view(py, pinned, &part.engine),
            None => view(py, value),
        }
    }

    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let part = self.held.part(py)?;
        Ok(part.cache.remove(&*bytes_of(key)?).is_some())
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.held.part(py)?.cache.clear();
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held.part(py)?.cache.len())
    }

    #[pyo3(signature = (group = None))]
    fn stats<'py>(&self, py: Python<'py>, group: Option<&Group>) -> PyResult<Bound<'py, PyDict>> {
        let part = self.held.part(py)?;
        let stats = match group {
            None => part.cache.stats(),
            Some(group) => part.cache.stats_of(&group.part_of(py, &part.engine)?.group),
        };
        as_dict(py, &stats)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        callbacks::check_outside().map_err(|failure| to_python(py, &failure))?;
        self.held.close();
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

fn as_dict<'py>(py: Python<'py>, stats: &ObjectStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in [
        ("objects", stats.objects),
        ("bytes", stats.bytes),
        ("pinned_bytes", stats.pinned_bytes),
        ("hits", stats.hits),
        ("misses", stats.misses),
        ("inserted", stats.inserted),
        ("refused", stats.declined),
        ("evicted", stats.evicted),
        ("expired", stats.expired),
        ("removed", stats.removed),
        ("replaced", stats.replaced),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
