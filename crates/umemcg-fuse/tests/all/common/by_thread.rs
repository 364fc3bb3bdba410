//! Groups by thread, as a test says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use umemcg::Group;
use umemcg_fuse::Classifier;

/// Groups by thread id, as far as they have been told.
#[derive(Debug)]
pub struct ByThread {
    everybody_else: Arc<Group>,
    groups: Mutex<HashMap<u32, Arc<Group>>>,
}

impl ByThread {
    pub fn new(everybody_else: &Arc<Group>) -> Arc<Self> {
        Arc::new(Self { everybody_else: Arc::clone(everybody_else), groups: Mutex::default() })
    }

    /// Runs `work` on a thread that is in `group`.
    pub fn run<T: Send>(&self, group: &Arc<Group>, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                self.groups.lock().unwrap().insert(tid, Arc::clone(group));
                work()
            });
            thread.join().unwrap()
        })
    }
}

impl Classifier for ByThread {
    fn classify(&self, tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        self.groups.lock().unwrap().get(&tid).unwrap_or(&self.everybody_else).clone()
    }
}
