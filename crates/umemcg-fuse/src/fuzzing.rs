//! Internal parsers of `/proc`, for the fuzz targets. Not part of the interface.

use crate::classify::proc_files;
use crate::signals::{Liveness, parse_liveness};

/// Parses a text as each kind of file. Returns whether each parse succeeded.
pub fn parse_proc_files(text: &[u8]) -> Vec<bool> {
    let status = proc_files::parse_status(text);
    vec![
        status.is_some(),
        status.as_ref().is_some_and(|status| status.is_zombie || !status.groups.is_empty()),
        status.as_ref().is_some_and(|status| status.session != 0),
        status.is_some_and(|status| status.is_ending),
        proc_files::cgroup_lines(text).next().is_some(),
        parse_liveness(text) != Liveness::Unknown,
        parse_liveness(text) == Liveness::Dying,
    ]
}

/// Returns the process and its parent in a `status` file.
pub fn ids_in_status(text: &[u8]) -> Option<(u32, u32)> {
    proc_files::parse_status(text).map(|status| (status.tgid, status.ppid))
}

/// Returns whether a `status` file shows a thread being killed.
pub fn is_dying_in_status(text: &[u8]) -> bool {
    parse_liveness(text) == Liveness::Dying
}

/// Returns the paths in a `cgroup` file.
pub fn cgroup_paths(text: &[u8]) -> Vec<Vec<u8>> {
    proc_files::cgroup_lines(text).map(|(_, path)| path.to_vec()).collect()
}
