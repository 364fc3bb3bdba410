//! From a group's pressure wake signal to the queue of the workers.

use std::sync::Arc;

use umemcg_base::WakeSignal;
use umemcg_group::Group;

use super::queue::{Job, Queue};
use crate::group_reclaim::GroupReclaim;

/// Attaches the group's pressure wake signal, if that has not been done.
pub(crate) fn listen_for_pressure(queue: &Arc<Queue>, group: &Arc<Group>, nr_nodes: usize) {
    let background = GroupReclaim::of(group, nr_nodes).background();
    background.job.get_or_init(|| {
        let job = Arc::new(Job::new(group, nr_nodes));
        let (weak, queue) = (Arc::downgrade(&job), Arc::downgrade(queue));
        let hook = move || {
            if let (Some(job), Some(queue)) = (weak.upgrade(), queue.upgrade()) {
                queue.enqueue_signalled(&job);
            }
        };
        group.wake_signals().pressure.set(Arc::new(WakeSignal::with_hook(hook)));
        job
    });
}

/// Notes that something of the group was freed: if it has backed off, it may be worth another
/// try.
pub(crate) fn wake_backed_off(queue: &Queue, group: &Arc<Group>) {
    for group in std::iter::successors(Some(group), |at| at.parent()) {
        if let Some(job) = GroupReclaim::if_present(group).and_then(|part| part.background().job()) {
            queue.wake_backed_off(job);
        }
    }
}
