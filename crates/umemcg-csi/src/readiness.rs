//! The plugin's readiness. After a start, the plugin restores volumes, groups and rules in the
//! daemon from its records, before kubelet changes anything.
//!
//! ```text
//! Begun     the first try has not ended; requests that change something wait, for a while
//! Waiting   the daemon does not answer; what it served can be taken down, and nothing be put up
//! Over      the daemon has what the records say, or kubelet's next requests mend what failed
//! ```
//!
//! Recovery takes places of [`Requests`] like a client. So a hung store blocks at most the threads
//! of its tenant. A record that takes too long is left to kubelet's next request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::{Code, Status};

use crate::node::Node;
use crate::records::{Published, Records, Staged};
use crate::requests::{PATIENCE, PLUGIN, Requests};

/// The pause before a daemon without an answer is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The timeout of one record.
const RECORD_WITHIN: Duration = Duration::from_secs(10);
/// The timeout of all records, once the daemon answers.
const RECORDS_WITHIN: Duration = Duration::from_mins(5);

/// The progress of recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Begun,
    Waiting(String),
    Over,
}

/// Recovery, and the requests waiting for it.
#[derive(Debug)]
pub struct Readiness {
    node: Arc<Node>,
    records: Arc<Records>,
    requests: Arc<Requests>,
    state: watch::Sender<State>,
    patience: Duration,
}

impl Readiness {
    /// Returns the readiness of a newly started plugin.
    pub fn new(node: Arc<Node>, records: Arc<Records>, requests: Arc<Requests>) -> Self {
        Self { node, records, requests, state: watch::Sender::new(State::Begun), patience: PATIENCE }
    }

    /// Restores volumes, groups, limits and rules in the daemon from the records. Retries while the
    /// daemon does not answer. Other failures are logged; kubelet's next publish request retries
    /// the failed record.
    pub async fn recover(&self) {
        loop {
            match tokio::time::timeout(RECORDS_WITHIN, self.restore_all()).await {
                Ok(Ok(())) => break,
                Ok(Err(status)) => self.wait_for_daemon(status.message()),
                Err(_) => {
                    tracing::warn!("the daemon takes long; the other records are left to kubelet's requests");
                    break;
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        self.state.send_replace(State::Over);
    }

    fn wait_for_daemon(&self, why: &str) {
        let waiting = State::Waiting(why.to_owned());
        if self.state.send_replace(waiting.clone()) != waiting {
            tracing::warn!(why, "the plugin waits for the daemon");
        }
    }

    /// Restores every record.
    ///
    /// # Errors
    /// The daemon does not answer, or the records cannot be read.
    async fn restore_all(&self) -> Result<(), Status> {
        self.probe(None).await?;
        let records = Arc::clone(&self.records);
        let read = move || Ok((records.all::<Staged>()?, records.all::<Published>()?));
        let (staged, published) = self.requests.change(None, || PLUGIN.into(), read).await?;
        for (name, volume) in staged {
            let (node, restored) = (Arc::clone(&self.node), name.clone());
            let work = move || node.restore_staged(&restored);
            self.restore("staged", &name, volume.namespace, work).await?;
        }
        for (record, known) in published {
            let (node, restored) = (Arc::clone(&self.node), record.clone());
            let tenant = known.pod.map_or_else(String::new, |pod| pod.namespace);
            let work = move || node.restore_published(&restored, &known.volume.name);
            self.restore("published", &record, tenant, work).await?;
        }
        Ok(())
    }

    /// Restores one record.
    ///
    /// # Errors
    /// The daemon no longer answers.
    async fn restore(
        &self,
        kind: &str,
        record: &str,
        tenant: String,
        work: impl FnOnce() -> Result<(), Status> + Send + 'static,
    ) -> Result<(), Status> {
        let restored = self.requests.change(Some(RECORD_WITHIN), || tenant, work).await;
        let Err(error) = restored else { return Ok(()) };
        tracing::warn!(kind, record, %error, "what a record says cannot be served");
        match error.code() {
            Code::Unavailable | Code::DeadlineExceeded => self.probe(None).await,
            _ => Ok(()),
        }
    }

    /// Returns whether recovery is over.
    pub fn is_ready(&self) -> bool {
        *self.state.borrow() == State::Over
    }

    /// Checks that the daemon serves, within `limit` or the default timeout.
    ///
    /// # Errors
    /// `FailedPrecondition` if the daemon does not serve, or does not answer.
    pub async fn probe(&self, limit: Option<Duration>) -> Result<(), Status> {
        let node = Arc::clone(&self.node);
        let probed = self.requests.probe(limit, move || node.probe()).await;
        probed.map_err(|status| match status.code() {
            Code::Unavailable | Code::DeadlineExceeded => {
                Status::failed_precondition(format!("the daemon does not serve: {}", status.message()))
            }
            _ => status,
        })
    }

    /// Waits a bounded time until volumes may be added to the daemon.
    ///
    /// # Errors
    /// `Unavailable` if recovery is not over by then.
    pub async fn may_add(&self) -> Result<(), Status> {
        self.wait(|state| *state == State::Over).await
    }

    /// Waits a bounded time until volumes may be removed, also from a node without a daemon.
    ///
    /// # Errors
    /// `Unavailable` if the first try of recovery has not ended by then.
    pub async fn may_remove(&self) -> Result<(), Status> {
        self.wait(|state| *state != State::Begun).await
    }

    async fn wait(&self, may_go_on: impl FnMut(&State) -> bool) -> Result<(), Status> {
        let mut state = self.state.subscribe();
        let waited = tokio::time::timeout(self.patience, state.wait_for(may_go_on)).await;
        if waited.is_ok_and(|found| found.is_ok()) {
            return Ok(());
        }
        let why = match &*self.state.borrow() {
            State::Waiting(why) => why.clone(),
            _ => "it gives the daemon what its records say".into(),
        };
        Err(Status::unavailable(format!("the plugin is not ready: {why}; try again")))
    }
}
