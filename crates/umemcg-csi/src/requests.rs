//! The bound on the requests in progress, and their threads.
//!
//! A request blocks: it talks to the daemon, writes control files and mounts. Without a bound, a
//! hung daemon or store would fill the plugin with threads, and the hung volumes of one tenant
//! would block all other tenants. So a request takes a place of its tenant, and then a place of the
//! plugin, before it gets a thread. It holds no thread while it waits for a place. After
//! [`PATIENCE`] the answer is `Unavailable`: kubelet and the provisioner retry after a pause, and
//! do not treat the request as failed.
//!
//! A tenant is a namespace. Volumes without a namespace, such as a volume for a whole cluster,
//! share one more tenant.
//!
//! Looks (health and statistics) have places of their own, so looks and changes do not delay each
//! other. Probes have their own places as well: they must detect a hung daemon.
//!
//! A request has a deadline. After it the client gets `DeadlineExceeded`. The thread goes on, with
//! its places and locks, until the daemon or the kernel answers: a system call waiting for a daemon
//! cannot be cancelled.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use umemcg_base::LeafMutex;

use crate::time_limits::{CHANGE_WITHIN, LOOK_WITHIN};

/// Most changes in progress, and most of one tenant. Changes and looks together are fewer than the
/// connections served by the daemon on its admin socket.
const NR_CHANGES_MAX: usize = 16;
const NR_CHANGES_OF_TENANT_MAX: usize = 6;
/// Most looks in progress, and most of one tenant.
const NR_LOOKS_MAX: usize = 6;
const NR_LOOKS_OF_TENANT_MAX: usize = 2;
/// Most probes in progress.
const NR_PROBES_MAX: usize = 2;
/// Threads for requests: one for each place, and some to look up the tenant of a request.
pub const NR_THREADS_MAX: usize = NR_CHANGES_MAX + NR_LOOKS_MAX + NR_PROBES_MAX + 4;
/// The longest wait of a request for its places. A starting node publishes all its pods at once.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The tenant of the plugin's own requests. No namespace has such a name.
pub const PLUGIN: &str = "(plugin)";

/// The requests in progress.
#[derive(Debug)]
pub struct Requests {
    changes: Places,
    looks: Places,
    probes: Places,
    patience: Duration,
}

impl Default for Requests {
    fn default() -> Self {
        Self::with_patience(PATIENCE)
    }
}

impl Requests {
    fn with_patience(patience: Duration) -> Self {
        Self {
            changes: Places::new(NR_CHANGES_MAX, NR_CHANGES_OF_TENANT_MAX),
            looks: Places::new(NR_LOOKS_MAX, NR_LOOKS_OF_TENANT_MAX),
            probes: Places::new(NR_PROBES_MAX, NR_PROBES_MAX),
            patience,
        }
    }

    /// Runs a changing request, with a deadline of `limit` or the default. The work goes on if the
    /// client leaves or the deadline passes. `tenant` may read records.
    ///
    /// # Errors
    /// The work's errors; `Unavailable` without a place; `DeadlineExceeded`; `Internal` if it
    /// panicked.
    pub async fn change<T: Send + 'static>(
        &self,
        limit: Option<Duration>,
        tenant: impl FnOnce() -> String + Send + 'static,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.run(&self.changes, limit.unwrap_or(CHANGE_WITHIN), tenant, work).await
    }

    /// Runs a read-only request, in the same way.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn look<T: Send + 'static>(
        &self,
        limit: Option<Duration>,
        tenant: impl FnOnce() -> String + Send + 'static,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.run(&self.looks, limit.unwrap_or(LOOK_WITHIN), tenant, work).await
    }

    /// Runs a probe of the daemon, in the same way.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn probe(
        &self,
        limit: Option<Duration>,
        work: impl FnOnce() -> Result<(), Status> + Send + 'static,
    ) -> Result<(), Status> {
        self.run(&self.probes, limit.unwrap_or(LOOK_WITHIN), || PLUGIN.into(), work).await
    }

    async fn run<T: Send + 'static>(
        &self,
        places: &Places,
        limit: Duration,
        tenant: impl FnOnce() -> String + Send + 'static,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let done = tokio::time::timeout(limit, self.run_in_place(places, tenant, work)).await;
        done.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "the daemon has not answered within {limit:?}, and the request goes on; try again"
            )))
        })
    }

    async fn run_in_place<T: Send + 'static>(
        &self,
        places: &Places,
        tenant: impl FnOnce() -> String + Send + 'static,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let tenant = on_thread(tenant).await?;
        let place = tokio::time::timeout(self.patience, places.take(&tenant)).await;
        let place = place.map_err(|_| {
            Status::unavailable("too many requests are in progress, which wait for the daemon; try again")
        })?;
        // The thread owns the place: a departing client does not end the work.
        let work = move || {
            let done = work();
            drop(place);
            done
        };
        on_thread(work).await?
    }
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(format!("the request broke off: {error}")))
}

/// Places for requests of one kind.
#[derive(Debug)]
struct Places {
    all: Arc<Semaphore>,
    nr_of_tenant_max: usize,
    /// The places of each tenant with requests, waiting requests included.
    of_tenants: LeafMutex<HashMap<String, Weak<Semaphore>>>,
}

/// A place in the plugin and a place of the tenant; dropping it frees both.
struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

impl Places {
    fn new(nr_max: usize, nr_of_tenant_max: usize) -> Self {
        let all = Arc::new(Semaphore::new(nr_max));
        Self { all, nr_of_tenant_max, of_tenants: LeafMutex::new(HashMap::new()) }
    }

    /// Takes a place. The tenant's comes first: a request waiting for its own tenant holds no place
    /// of the plugin.
    async fn take(&self, tenant: &str) -> Place {
        let of_tenant = self.of_tenant(tenant).acquire_owned().await;
        let of_all = Arc::clone(&self.all).acquire_owned().await;
        match (of_all, of_tenant) {
            (Ok(of_all), Ok(of_tenant)) => Place { _of_all: of_all, _of_tenant: of_tenant },
            _ => unreachable!("places are never closed"),
        }
    }

    fn of_tenant(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.of_tenants.lock();
        if let Some(known) = tenants.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        tenants.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.nr_of_tenant_max));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tonic::Code;

    /// Requests of tenants, hung until [`Hung::end`].
    struct Hung {
        requests: Arc<Requests>,
        ends: Vec<mpsc::Sender<()>>,
    }

    impl Hung {
        fn new() -> Self {
            // Every wait in these tests ends without a place.
            let requests = Arc::new(Requests::with_patience(Duration::from_millis(20)));
            Self { requests, ends: Vec::new() }
        }

        /// Begins a hanging change. Returns its result if it gets no place.
        async fn begin(&mut self, tenant: &str) -> Option<Status> {
            let (end, ended) = mpsc::channel::<()>();
            let (began, begun) = tokio::sync::oneshot::channel();
            let (requests, tenant) = (Arc::clone(&self.requests), tenant.to_owned());
            let work = move || {
                let _ = began.send(());
                let _ = ended.recv();
                Ok(())
            };
            let asked = tokio::spawn(async move { requests.change(None, move || tenant, work).await });
            match begun.await {
                Ok(()) => self.ends.push(end),
                Err(_) => return asked.await.unwrap().err(),
            }
            None
        }

        async fn ask(&self, tenant: &str) -> Result<(), Status> {
            let tenant = tenant.to_owned();
            self.requests.change(None, move || tenant, || Ok(())).await
        }
    }

    #[tokio::test]
    async fn a_hung_tenant_keeps_no_other_out() {
        let mut hung = Hung::new();
        for _ in 0..NR_CHANGES_OF_TENANT_MAX {
            assert!(hung.begin("shop").await.is_none());
        }
        for _ in 0..3 {
            assert_eq!(hung.begin("shop").await.unwrap().code(), Code::Unavailable);
        }
        hung.ask("bank").await.unwrap();
        hung.requests.look(None, || "shop".into(), || Ok(())).await.unwrap();
        hung.ends.clear();
        // Its places are free again once the threads have ended.
        while hung.ask("shop").await.is_err() {}
    }

    #[tokio::test]
    async fn requests_of_all_tenants_are_bounded() {
        let mut hung = Hung::new();
        for number in 0..NR_CHANGES_MAX {
            assert!(hung.begin(&format!("tenant-{}", number % 4)).await.is_none());
        }
        assert_eq!(hung.begin("bank").await.unwrap().code(), Code::Unavailable);
        hung.requests.look(None, || PLUGIN.into(), || Ok(())).await.unwrap();
        hung.ends.clear();
        while hung.ask("bank").await.is_err() {}
        assert!(hung.requests.changes.of_tenants.lock().len() <= 6, "tenants without requests are forgotten");
    }

    #[tokio::test]
    async fn a_request_that_hangs_is_answered_in_time() {
        let requests = Arc::new(Requests::with_patience(Duration::from_millis(20)));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        let hang = || {
            let ended = Arc::clone(&ended);
            let work = move || {
                let _ = ended.lock().unwrap().recv();
                Ok(())
            };
            // Long enough for its thread to begin.
            requests.probe(Some(Duration::from_secs(2)), work)
        };
        for _ in 0..NR_PROBES_MAX {
            assert_eq!(hang().await.unwrap_err().code(), Code::DeadlineExceeded);
        }
        // Their threads still have the places.
        let refused = requests.probe(None, || Ok(())).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        drop(end);
        while requests.probe(None, || Ok(())).await.is_err() {}
    }

    #[tokio::test]
    async fn a_client_that_leaves_frees_no_place_of_a_thread() {
        let requests = Arc::new(Requests::with_patience(Duration::from_millis(20)));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        for _ in 0..NR_LOOKS_OF_TENANT_MAX {
            let (began, begun) = tokio::sync::oneshot::channel();
            let (ended, asking) = (Arc::clone(&ended), Arc::clone(&requests));
            let work = move || {
                let _ = began.send(());
                let _ = ended.lock().unwrap().recv();
                Ok(())
            };
            let asked = tokio::spawn(async move { asking.look(None, || "shop".into(), work).await });
            begun.await.unwrap();
            asked.abort();
            let _ = asked.await;
        }
        let refused = requests.look(None, || "shop".into(), || Ok(())).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        drop(end);
    }
}
