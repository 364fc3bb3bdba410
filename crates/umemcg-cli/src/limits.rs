//! Limits of groups set by a configuration. They go through the control files, like a write to the
//! mounted file, so the same values are valid.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use umemcg_control::{Access, Attr, ControlError, ControlTree, Credentials, NodeId, Request};

/// Control files to move processes. Not allowed here: a configuration cannot know process ids.
const OF_PROCESSES: [&str; 2] = ["cgroup.procs", "tasks"];

/// A limit: the path of the group, and the name of the control file.
pub type LimitName = (String, String);

/// The texts written to limits.
pub type LimitTexts = BTreeMap<LimitName, String>;

/// Creates the group at a path from the root, with its ancestors, unless it exists.
///
/// # Errors
/// Those of a `mkdir` in the control files.
pub fn make_group(tree: &ControlTree, path: &str) -> Result<NodeId, ControlError> {
    let below = path.trim_start_matches('/');
    let mut node = NodeId::ROOT;
    for name in below.split('/').filter(|_| !below.is_empty()) {
        if name.is_empty() || name == "." || name == ".." {
            return Err(ControlError::Invalid);
        }
        let made: Result<Attr, ControlError> = match tree.mkdir(node, OsStr::new(name), 0o755, &daemon_user())
        {
            Err(ControlError::Exists) => tree.lookup(node, OsStr::new(name)),
            made => made,
        };
        let made = made?;
        if !made.is_directory {
            return Err(ControlError::Exists);
        }
        node = made.node;
    }
    Ok(node)
}

/// Resets a limit of a group to the value of a new group. `fresh` is a tree without groups. Returns
/// `false` if the group is gone.
///
/// # Errors
/// Those of the control file.
pub fn reset_limit(tree: &ControlTree, fresh: &ControlTree, limit: &LimitName) -> Result<bool, ControlError> {
    let (path, file) = limit;
    let Some(node) = find_limit(tree, limit) else { return Ok(false) };
    if path.split('/').all(str::is_empty) {
        // The limits of the root depend on the machine and the pool.
        return Err(ControlError::NotPermitted);
    }
    let example = match fresh.mkdir(NodeId::ROOT, OsStr::new("fresh"), 0o755, &daemon_user()) {
        Err(ControlError::Exists) => fresh.lookup(NodeId::ROOT, OsStr::new("fresh")),
        made => made,
    };
    let example = limit_file(fresh, example?.node, file).ok_or(ControlError::NotFound)?;
    write_limit(tree, node, read_limit(fresh, example)?.trim_end())?;
    Ok(true)
}

/// Returns the text of a limit; none if the limit does not exist or cannot be read.
pub fn limit_text(tree: &ControlTree, limit: &LimitName) -> Option<String> {
    read_limit(tree, find_limit(tree, limit)?).ok()
}

fn find_limit(tree: &ControlTree, (path, file): &LimitName) -> Option<NodeId> {
    let mut names = path.split('/').filter(|name| !name.is_empty()).map(OsStr::new);
    let found = names.try_fold(NodeId::ROOT, |at, name| tree.lookup(at, name).map(|found| found.node));
    found.ok().and_then(|group| limit_file(tree, group, file))
}

fn read_limit(tree: &ControlTree, file: NodeId) -> Result<String, ControlError> {
    let open = tree.open(file, Access { read: true, write: false }, daemon_user())?;
    let text = tree.read(&open, 0, TEXT_BYTES_MAX, &OWN_REQUEST)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Longest text of a limit.
const TEXT_BYTES_MAX: usize = 4096;

/// A request of the daemon itself, not of a process.
const OWN_REQUEST: Request<'_> =
    Request { tid: 0, nonblocking: false, cancelled: &|| false, accepted: &|| {} };

fn daemon_user() -> Credentials {
    Credentials::user(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Returns the control file of a group, if it may be set by a configuration.
pub fn limit_file(tree: &ControlTree, group: NodeId, file: &str) -> Option<NodeId> {
    let found = tree.lookup(group, OsStr::new(file)).ok();
    found.filter(|found| !found.is_directory && !OF_PROCESSES.contains(&file)).map(|found| found.node)
}

/// Writes a limit.
///
/// # Errors
/// Those of the control file.
pub fn write_limit(tree: &ControlTree, file: NodeId, text: &str) -> Result<(), ControlError> {
    let open = tree.open(file, Access { read: false, write: true }, daemon_user())?;
    tree.write(&open, text.as_bytes(), &OWN_REQUEST).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use umemcg::{Engine, EngineConfig};
    use umemcg_fuse::ProcessClassifier;

    #[test]
    fn a_limit_is_reset_to_that_of_a_new_group() {
        let tree = || {
            let engine = Engine::new(EngineConfig::default()).unwrap();
            let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
            (ControlTree::new(Arc::clone(&engine), classifier), engine)
        };
        let ((tree, engine), (fresh, _)) = (tree(), tree());
        let group = make_group(&tree, "/a/b").unwrap();
        let limits = [
            ("memory.max", "1048576"),
            ("memory.low", "1048576"),
            ("memory.high", "1048576"),
            ("memory.soft_limit_in_bytes", "1048576"),
            ("memory.swappiness", "50"),
        ];
        for (file, text) in limits {
            write_limit(&tree, limit_file(&tree, group, file).unwrap(), text).unwrap();
        }
        let a = engine.root().child(OsStr::new("a")).unwrap();
        let b = a.child(OsStr::new("b")).unwrap();
        assert_eq!(b.max_bytes(), 1 << 20);
        for (file, _) in limits {
            assert_eq!(reset_limit(&tree, &fresh, &("/a/b".into(), file.into())), Ok(true), "{file}");
        }
        assert_eq!(b.max_bytes(), a.max_bytes());
        assert_eq!(reset_limit(&tree, &fresh, &("/gone".into(), "memory.max".into())), Ok(false));
        let of_root = ("/".into(), "memory.dirty_ratio".into());
        assert_eq!(reset_limit(&tree, &fresh, &of_root), Err(ControlError::NotPermitted));
    }
}
