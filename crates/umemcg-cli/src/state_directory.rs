//! The directory for state that must outlive the daemon, other than user data.

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the directory for notes about uploads and staging directories of stores: below systemd's
/// `StateDirectory=`, else `/var/lib/umemcg` for root, else the user's state directory by the XDG
/// specification. `None` for a user without a home.
pub fn notes() -> Option<PathBuf> {
    of(rustix::process::geteuid().is_root(), &|name| std::env::var_os(name)).map(|dir| dir.join("stores"))
}

fn of(is_root: bool, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    // The variable may list several directories; use the first.
    let of_unit = variable("STATE_DIRECTORY").and_then(|dirs| std::env::split_paths(&dirs).next());
    if let Some(dir) = of_unit.filter(|dir| dir.is_absolute()) {
        return Some(dir);
    }
    if is_root {
        return Some(PathBuf::from("/var/lib/umemcg"));
    }
    let of_user = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    of_user.map(|dir| dir.join("umemcg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_says_where_else_the_user() {
        let with = |is_root, known: &[(&str, &str)]| {
            let variable =
                |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            of(is_root, &variable).map(|dir| dir.display().to_string()).unwrap_or_default()
        };
        assert_eq!(with(true, &[("STATE_DIRECTORY", "/a:/b"), ("HOME", "/root")]), "/a");
        assert_eq!(with(true, &[("STATE_DIRECTORY", "a"), ("HOME", "/root")]), "/var/lib/umemcg");
        assert_eq!(with(false, &[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), "/s/umemcg");
        assert_eq!(with(false, &[("XDG_STATE_HOME", "s"), ("HOME", "/h")]), "/h/.local/state/umemcg");
        assert_eq!(with(false, &[]), "");
    }
}
