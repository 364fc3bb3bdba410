//! Membership files, and core files with constant content.
//!
//! Permission to move a process: the opener must be allowed to write the `cgroup.procs` of the
//! target group, and the `cgroup.procs` of the lowest common ancestor of source and target. So a
//! user with a delegated subtree moves processes within it, and neither in nor out. The same holds
//! for `tasks`.

use std::collections::HashSet;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::Group;

use crate::context::FileContext;
use crate::error::ControlError;
use crate::membership::MembershipError;
use crate::numbers::{parse_number, parse_pid, strip};
use crate::permission::WRITE;
use crate::populated::is_populated;
use crate::row::{ReadResult, WriteResult};
use crate::style::Style;

pub(crate) fn show_processes(context: &FileContext<'_>) -> ReadResult {
    show_ids(
        context,
        context.state.membership().processes(context.group)?,
        context.state.style() == Style::V1,
    )
}

/// Shows `tasks`.
pub(crate) fn show_tasks(context: &FileContext<'_>) -> ReadResult {
    show_ids(context, context.state.membership().threads(context.group)?, true)
}

/// Shows `cgroup.threads`.
pub(crate) fn show_threads(context: &FileContext<'_>) -> ReadResult {
    show_ids(context, context.state.membership().threads(context.group)?, false)
}

/// Shows ids. Ids not visible in the reader's pid namespace are omitted in version 1 and shown as 0
/// in version 2, as in Linux.
fn show_ids(context: &FileContext<'_>, ids: Vec<u32>, leave_out: bool) -> ReadResult {
    let ids = context.state.membership().ids_for_viewer(context.request.tid, ids);
    Ok(ids.iter().filter(|&&id| id != 0 || !leave_out).map(|id| format!("{id}\n")).collect())
}

pub(crate) fn attach_process(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let membership = context.state.membership();
    let thread = named_thread(context, written)?;
    let process = membership.process_of(thread)?;
    let _move = context.state.begin_move();
    check_move(context, process)?;
    Ok(membership.attach_process(context.group, process)?)
}

pub(crate) fn attach_thread(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let thread = named_thread(context, written)?;
    let _move = context.state.begin_move();
    check_move(context, thread)?;
    Ok(context.state.membership().attach_thread(context.group, thread)?)
}

/// Refuses to move a single thread: Linux allows it between threaded groups only.
pub(crate) fn refuse_thread(_context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    Err(ControlError::System(Errno::OPNOTSUPP))
}

/// Most rounds of killing the processes of a subtree while they fork faster than they die.
const KILL_ROUNDS_MAX: u32 = 100;

/// Kills all processes of the subtree.
#[doc(alias = "__cgroup_kill")]
pub(crate) fn kill(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    if parse_number(written)? != 1 {
        return Err(ControlError::Invalid);
    }
    // The writer's own children may be among them, and the SIGCHLD must not interrupt its write.
    (context.request.accepted)();
    let membership = context.state.membership();
    let mut killed = HashSet::new();
    for _ in 0..KILL_ROUNDS_MAX {
        let nr_before = killed.len();
        let mut at = Group::next_in_subtree(context.group, None);
        while let Some(group) = at {
            for process in membership.processes(&group)? {
                if killed.insert(process) {
                    membership.kill(&group, process)?;
                }
            }
            at = Group::next_in_subtree(context.group, Some(&group));
        }
        if killed.len() == nr_before {
            break;
        }
    }
    Ok(())
}

/// Returns the thread named by a written id, in the daemon's pid namespace; 0 is the writer.
fn named_thread(context: &FileContext<'_>, written: &[u8]) -> Result<u32, ControlError> {
    let writer = context.request.tid;
    match parse_pid(written)? {
        // A writer outside the daemon's pid namespace cannot be moved.
        0 if writer == 0 => Err(ControlError::NoSuchProcess),
        0 => Ok(writer),
        id => Ok(context.state.membership().id_from_viewer(writer, id)?),
    }
}

/// Checks that the opener may move a thread from its present group into this group.
fn check_move(context: &FileContext<'_>, thread: u32) -> WriteResult {
    let from = context.state.membership().explicit_group(thread)?;
    let above = common_ancestor(&from, context.group);
    let procs = context.state.file_named("cgroup.procs");
    let allowed =
        |group: &Group| context.state.control(group).owner(procs).grants(&context.file.opener, WRITE);
    if allowed(context.group) && allowed(&above) { Ok(()) } else { Err(ControlError::Denied) }
}

fn common_ancestor(one: &Arc<Group>, other: &Arc<Group>) -> Arc<Group> {
    let mut at = one;
    while !other.is_descendant_of(at) {
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    Arc::clone(at)
}

pub(crate) fn show_controllers(_context: &FileContext<'_>) -> ReadResult {
    Ok("memory\n".to_owned())
}

/// Accepts a change of the controllers. Every child is controlled, always; so turning the
/// controller on changes nothing, and it is in use, so it cannot be turned off. The last word on a
/// controller counts.
pub(crate) fn set_subtree_control(_context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let mut turn_off = false;
    for word in strip(written).split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        match word {
            b"+memory" => turn_off = false,
            b"-memory" => turn_off = true,
            _ => return Err(ControlError::Invalid),
        }
    }
    if turn_off { Err(ControlError::Busy) } else { Ok(()) }
}

pub(crate) fn show_type(_context: &FileContext<'_>) -> ReadResult {
    Ok("domain\n".to_owned())
}

pub(crate) fn show_events(context: &FileContext<'_>) -> ReadResult {
    let populated = is_populated(context.state.membership(), context.group);
    context.file.watch.note_populated(populated);
    context.control().populated.note(populated);
    Ok(format!("populated {}\nfrozen 0\n", u8::from(populated)))
}

impl From<MembershipError> for ControlError {
    fn from(error: MembershipError) -> Self {
        match error {
            MembershipError::NoSuchProcess => ControlError::NoSuchProcess,
            MembershipError::Gone => ControlError::Gone,
            MembershipError::Populated => ControlError::Busy,
            MembershipError::System(errno) => ControlError::System(errno),
        }
    }
}
