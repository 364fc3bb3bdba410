//! Takes over the drafts accepted by an earlier daemon when the volume is opened. Their files are
//! shown at once under their names. They are stored in the background, on the conditions of their
//! acceptance.
//!
//! Their writers are no longer known, so the root group pays until they are stored.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::bucket::Bucket;
use super::content::Content;
use super::draft_record::{DraftRecord, DraftState, Promise};
use super::drafts::Drafts;
use super::key_parts::key_part;
use super::name_shrinker;
use super::node::{Facts, NodeCharge, Told};
use crate::attr::NodeId;
use crate::error::{VfsError, VolumeError};

/// Takes over all accepted drafts. A draft that cannot be shown as a file is moved to `lost/`.
///
/// # Errors
/// [`VolumeError::Staging`] without memory or descriptors, or for the disk; then all is as before.
pub(super) fn adopt_all(drafts: &Drafts, bucket: &Arc<dyn Bucket>) -> Result<(), VolumeError> {
    let Some(staging) = &drafts.staging else { return Ok(()) };
    let accepted = staging.take_accepted();
    if accepted.is_empty() {
        return Ok(());
    }
    drafts.objects.lists_or(|| name_shrinker::register(&drafts.objects));
    // Two drafts of one name should not exist; of these the newer one counts.
    for (serial, record) in accepted.iter().rev() {
        let DraftState::Accepted(promise) = &record.state else { continue };
        match adopt(drafts, *serial, record, promise) {
            Err(VfsError::Host(errno @ (Errno::EXIST | Errno::NOTDIR | Errno::INVAL | Errno::NOENT))) => {
                let path = staging.lose(*serial, &record.key);
                tracing::error!(
                    key = record.key, %errno, path = %path.display(),
                    "a file that was accepted before cannot be stored; it is kept"
                );
            }
            adopted => adopted.map_err(|error| staging.failure(bucket, error.errno()))?,
        }
    }
    tracing::info!(nr = accepted.len(), "files that were accepted before are stored now");
    Ok(())
}

/// Enters the file of a draft.
///
/// # Errors
/// `EEXIST`, `ENOTDIR`, `EINVAL`, `ENOENT` if it cannot be shown under its key; `ENOMEM`, `ENFILE`,
/// the disk's.
fn adopt(drafts: &Drafts, serial: u64, record: &DraftRecord, promise: &Promise) -> Result<(), VfsError> {
    let (directory, name) = record.key.rsplit_once('/').unwrap_or(("", &record.key));
    key_part(name.as_ref())?;
    let mut above = Vec::new();
    let entered = enter_directories(drafts, directory, &mut above)
        .and_then(|parent| enter_file(drafts, (parent, name), (serial, record, promise)));
    above.into_iter().for_each(|node| drafts.objects.forget(node, 1));
    entered
}

/// Enters the directories of a path. Counts a lookup of each, and notes its node in `above`.
fn enter_directories(drafts: &Drafts, path: &str, above: &mut Vec<NodeId>) -> Result<NodeId, VfsError> {
    let objects = &drafts.objects;
    let (effort, root) = (objects.reclaim_effort(), objects.engine.root());
    let mut parent = NodeId::ROOT;
    for name in path.split('/').filter(|_| !path.is_empty()) {
        key_part(name.as_ref())?;
        let known = (Facts::Directory(None), Told { at: Instant::now(), thread: 0 });
        let entry = objects.enter(effort, root, (parent, name), known, false)?;
        above.push(entry.node);
        if !entry.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        parent = entry.node;
    }
    Ok(parent)
}

fn enter_file(
    drafts: &Drafts,
    (parent, name): (NodeId, &str),
    (serial, record, promise): (u64, &DraftRecord, &Promise),
) -> Result<(), VfsError> {
    let objects = &drafts.objects;
    let (effort, engine, root) = (objects.reclaim_effort(), &objects.engine, objects.engine.root());
    if objects.tree.lock().child(parent, name).is_some() {
        return Err(Errno::EXIST.into());
    }
    let lists = objects.lists().ok_or(Errno::STALE)?;
    let node = objects.next_node();
    let labels = objects.shown.labels_here(&promise.metadata);
    let draft = drafts.maker(node, root)?.adopt(node, (serial, record), (promise, labels))?;
    let place = (record.key.clone(), Arc::clone(&draft));
    let content = Content::of_draft(effort, engine, root, place)?;
    let charge = NodeCharge::take(effort, engine, root)?;
    let facts = (Facts::Object(draft.shown()), Told { at: Instant::now(), thread: 0 });
    let removed = {
        let mut tree = objects.tree.lock();
        let entered = tree.enter(lists, node, (parent, name), facts, charge);
        entered.inspect(|_| {
            if let Ok(found) = tree.get_mut(node) {
                found.content = Some(Arc::clone(&content));
            }
            let _ = tree.stage(node);
        })
    };
    let removed = removed.map_err(|(errno, charge)| {
        drop(charge);
        errno
    })?;
    objects.dispose(removed);
    drafts.adopt(&content, &draft);
    objects.forget(node, 1);
    Ok(())
}
