//! The policy for ephemeral inline volumes: the data that the author of a pod may mount, beside
//! memory.
//!
//! The daemon reads and writes with its own rights and credentials. A PersistentVolume or
//! StorageClass is written by an administrator, an inline volume by any user with the right to
//! start a pod. So an inline volume cannot show a directory of the node or a volume of the
//! configuration, and cannot choose a server. It may show only stores named by the administrator.

use tonic::Status;

use crate::daemon::VolumeData;

/// Store options allowed in an inline volume.
const OPTIONS: [&str; 3] = ["anonymous", "attributes", "freshness"];

/// The stores allowed in inline volumes.
#[derive(Debug, Clone, Default)]
pub struct InlinePolicy {
    stores: Vec<String>,
}

impl InlinePolicy {
    /// Allows these prefixes and everything below them.
    pub fn new(stores: Vec<String>) -> Self {
        Self { stores }
    }

    /// Checks the data of an inline volume.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not allowed.
    pub fn check(&self, data: &VolumeData) -> Result<(), Status> {
        let refused = |what: String| Err(Status::invalid_argument(what));
        match data {
            VolumeData::Tmpfs { .. } => Ok(()),
            VolumeData::Store { url, options } => {
                if let Some(option) = options.keys().find(|option| !OPTIONS.contains(&option.as_str())) {
                    return refused(format!(
                        "an inline volume cannot set `{option}`; use a PersistentVolume"
                    ));
                }
                match self.stores.iter().any(|prefix| is_below(url, prefix)) {
                    true => Ok(()),
                    false => refused(format!(
                        "inline volumes may not show {url}; the plugin's --inline-store names what they may"
                    )),
                }
            }
            VolumeData::Dir { .. } | VolumeData::Existing { .. } => {
                refused("an inline volume is of type tmpfs or store; use a PersistentVolume".into())
            }
        }
    }
}

/// Returns whether a URL equals a prefix or lies below it. A URL with `..` or an escape never does:
/// the store might resolve it differently.
fn is_below(url: &str, prefix: &str) -> bool {
    let has_tricks =
        url.split('/').any(|part| part == "." || part == "..") || url.contains(['%', '?', '#', '@', '\\']);
    let rest = url.strip_prefix(prefix.trim_end_matches('/'));
    !has_tricks && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn store(url: &str, option: Option<&str>) -> VolumeData {
        let options: BTreeMap<_, _> = option.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        VolumeData::Store { url: url.into(), options }
    }

    #[test]
    fn a_pod_reaches_only_what_the_administrator_named() {
        let policy = InlinePolicy::new(vec!["s3://public/data/".into()]);
        policy.check(&VolumeData::Tmpfs { size_bytes: None }).unwrap();
        policy.check(&store("s3://public/data", None)).unwrap();
        policy.check(&store("s3://public/data/a", Some("freshness"))).unwrap();
        for wrong in [
            store("s3://public/data2", None),
            store("s3://public", None),
            store("s3://public/data/../x", None),
            store("s3://public/data/%2e%2e/x", None),
            store("file:///etc", None),
            store("s3://public/data/a", Some("endpoint")),
            store("s3://public/data/a", Some("staging")),
            VolumeData::Dir { path: "/etc".into() },
            VolumeData::Existing { volume: "x".into() },
        ] {
            assert_eq!(policy.check(&wrong).unwrap_err().code(), tonic::Code::InvalidArgument, "{wrong:?}");
        }
        assert!(InlinePolicy::default().check(&store("s3://public/data", None)).is_err());
    }
}
