//! The policy for ephemeral inline volumes: the data that the author of a pod may mount, beside
//! memory.
//!
//! The daemon reads and writes with its own rights and credentials. A PersistentVolume or
//! StorageClass is written by an administrator, an inline volume by any user with the right to
//! start a pod. So an inline volume cannot show a directory of the node or a volume of the
//! configuration, and cannot choose a server. It may show only stores named by the administrator.
//! Memory in a `tmpfs` volume cannot be reclaimed, so a namespace gets only a share of the pool.

use tonic::Status;
use umemcg_base::PAGE_SIZE_U64;

use crate::daemon::VolumeData;

/// Store options allowed in an inline volume.
const OPTIONS: [&str; 3] = ["anonymous", "attributes", "freshness"];
/// The least share, unless the administrator configures one: a few pods with their groups and names
/// would fill a smaller one.
const SHARE_BYTES_MIN: u64 = 1 << 20;

/// The stores allowed in inline volumes, and the memory of a namespace.
#[derive(Debug, Clone, Default)]
pub struct InlinePolicy {
    stores: Vec<String>,
    share_bytes: Option<u64>,
}

impl InlinePolicy {
    /// Allows these prefixes and everything below them. The share of each namespace is
    /// `share_bytes`, or half of what the other namespaces leave.
    pub fn new(stores: Vec<String>, share_bytes: Option<u64>) -> Self {
        Self { stores, share_bytes }
    }

    /// Returns the share of a namespace, in bytes of whole pages, where the other namespaces leave
    /// `left_bytes`.
    ///
    /// # Errors
    /// `ResourceExhausted` if that is too little.
    pub fn share_of(&self, namespace: &str, left_bytes: u64) -> Result<u64, Status> {
        let share = self.share_bytes.unwrap_or((left_bytes / 2).max(SHARE_BYTES_MIN));
        match share <= left_bytes {
            true => Ok(share / PAGE_SIZE_U64 * PAGE_SIZE_U64),
            false => Err(Status::resource_exhausted(format!(
                "the limits of other namespaces leave {left_bytes} bytes of the pool, and an inline volume of \
                 memory needs {share}: set a limit of the group /{namespace}, or lower another's"
            ))),
        }
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
        let policy = InlinePolicy::new(vec!["s3://public/data/".into()], None);
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

    #[test]
    fn a_share_is_half_of_the_rest_or_as_configured() {
        let code =
            |policy: &InlinePolicy, left_bytes| policy.share_of("shop", left_bytes).unwrap_err().code();
        let half = InlinePolicy::default();
        assert_eq!(half.share_of("shop", 240 << 20).unwrap(), 120 << 20);
        assert_eq!(half.share_of("shop", (6 << 20) + 4098).unwrap(), 3 << 20);
        assert_eq!(half.share_of("shop", SHARE_BYTES_MIN).unwrap(), SHARE_BYTES_MIN);
        assert_eq!(code(&half, SHARE_BYTES_MIN - 1), tonic::Code::ResourceExhausted);
        let fixed = InlinePolicy::new(Vec::new(), Some(64 << 20));
        assert_eq!(fixed.share_of("shop", 64 << 20).unwrap(), 64 << 20);
        assert_eq!(code(&fixed, (64 << 20) - 1), tonic::Code::ResourceExhausted);
    }
}
