//! From a group's pressure wake signal to the queue of the workers.

use std::sync::Arc;

use umemcg_base::WakeSignal;
use umemcg_group::Group;

use super::queue::{Job, Queue};
use crate::group_reclaim::GroupReclaim;

/// Attaches the group's pressure wake signal, unless already attached.
pub(crate) fn listen_for_pressure(queue: &Arc<Queue>, group: &Arc<Group>) {
    let background = GroupReclaim::of(group).background();
    background.job.get_or_init(|| {
        let job = Arc::new(Job::new(group));
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

/// Notes freed pages of the group: if it has backed off, it may be worth another try.
pub(crate) fn wake_backed_off(queue: &Queue, group: &Arc<Group>) {
    jobs_from(group).for_each(|job| queue.wake_backed_off(job));
}

/// Notes bytes of the group with an ended release request, released or not.
pub(crate) fn note_ended(queue: &Queue, group: &Arc<Group>, bytes: u64) {
    jobs_from(group).for_each(|job| queue.note_ended(job, bytes));
}

/// Returns the jobs of a group and of its ancestors.
fn jobs_from(group: &Arc<Group>) -> impl Iterator<Item = &Arc<Job>> {
    let levels = std::iter::successors(Some(group), |at| at.parent());
    levels.filter_map(|group| GroupReclaim::if_present(group)?.background().job())
}
