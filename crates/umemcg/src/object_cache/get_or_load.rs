//! Lookups that load missing values. All use one mechanism, [`Lookup`]: a task awaits it, a thread
//! blocks on it.

use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_group::Group;

use super::ObjectCache;
use super::blocking_wait::wait_for;
use super::lookup::{LoadGuard, Lookup, look_up};

impl<K, V, S> ObjectCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up for `group`: returns its value, or the duty to load it, or a future of a load
    /// begun by another caller of the group. Callers of one group wait for each other, never for
    /// another group's load. Never blocks for longer than a lock of the cache is held.
    pub fn lookup(&self, group: &Arc<Group>, key: K) -> Lookup<K, V, S> {
        look_up(&self.objects, group, key)
    }

    /// Returns the value of a key. If there is none, calls `load`, stores its result and charges it
    /// to `group`. Of several threads and tasks of the group missing the same key, one loads and
    /// the others wait; if it panics, another one loads. A declined value is returned, too.
    ///
    /// `load` runs with no lock held and may use the cache, but not load this key again: it would
    /// wait for itself. In the same way, two loads that each look up the key of the other wait for
    /// ever, as with other caches. So loads look up the keys of others in one order only, from
    /// composed values to their parts.
    pub fn get_or_insert_with(&self, group: &Arc<Group>, key: K, load: impl FnOnce() -> V) -> V {
        let loaded = self.get_or_try_insert_with(group, key, || Ok::<V, Infallible>(load()));
        loaded.unwrap_or_else(|never| match never {})
    }

    /// Like [`get_or_insert_with`](Self::get_or_insert_with), with a `load` that may fail: its
    /// caller gets the error, and another waiting caller loads.
    ///
    /// # Errors
    /// The errors of `load`.
    pub fn get_or_try_insert_with<E>(
        &self,
        group: &Arc<Group>,
        key: K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let guard: LoadGuard<K, V, S> = match self.lookup(group, key) {
            Lookup::Value(value) => return Ok(value),
            Lookup::Load(guard) => guard,
            Lookup::Wait(wait) => match wait_for(wait) {
                Ok(value) => return Ok(value),
                Err(guard) => guard,
            },
        };
        Ok(guard.insert(load()?))
    }

    /// Returns the value of a key. If there is none, awaits `load`, stores its result and charges
    /// it to `group`. Of several callers of the group that miss the same key, one loads and the
    /// others wait; if its future is dropped, or panics, another one loads. A declined value is
    /// returned all the same.
    ///
    /// No runtime is needed, and no thread is blocked: memory is reclaimed by a worker, as
    /// [`insert_soon`](Self::insert_soon) says. Only the loading caller polls `load`.
    ///
    /// ```
    /// # use std::ffi::OsStr;
    /// # use std::sync::Arc;
    /// # use umemcg::{Engine, EngineConfig, ObjectCache};
    /// # async fn fetch(url: &str) -> Result<Arc<str>, std::io::Error> { Ok(url.into()) }
    /// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::new(EngineConfig::new(16 << 20))?;
    /// let tenant = engine.create_group(engine.root(), OsStr::new("tenant"))?;
    /// let pages: ObjectCache<String, Arc<str>> = ObjectCache::builder(&engine, "pages").build();
    ///
    /// let url = "http://localhost/".to_owned();
    /// let page = pages.get_or_try_insert_async(&tenant, url.clone(), fetch(&url)).await?;
    /// # Ok(())
    /// # }
    /// # let mut serve = std::pin::pin!(serve());
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let std::task::Poll::Ready(served) = serve.as_mut().poll(&mut context) else { panic!() };
    /// # served.map_err(|error| error.to_string())?;
    /// # Ok::<(), String>(())
    /// ```
    pub async fn get_or_insert_async(&self, group: &Arc<Group>, key: K, load: impl Future<Output = V>) -> V {
        let loaded = self.get_or_try_insert_async(group, key, async { Ok::<V, Infallible>(load.await) });
        loaded.await.unwrap_or_else(|never| match never {})
    }

    /// Like [`get_or_insert_async`](Self::get_or_insert_async), with a `load` that may fail: its
    /// caller gets the error, and another waiting caller loads.
    ///
    /// # Errors
    /// The errors of `load`.
    pub async fn get_or_try_insert_async<E>(
        &self,
        group: &Arc<Group>,
        key: K,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let guard: LoadGuard<K, V, S> = match self.lookup(group, key) {
            Lookup::Value(value) => return Ok(value),
            Lookup::Load(guard) => guard,
            Lookup::Wait(wait) => match wait.await {
                Ok(value) => return Ok(value),
                Err(guard) => guard,
            },
        };
        Ok(guard.insert_soon(load.await?))
    }
}
