//! The attributes of a volume, set by a StorageClass, a PersistentVolume or a pod.
//!
//! ```text
//! type        tmpfs, store, dir or existing
//! size        of a tmpfs volume: 256Mi
//! store       the URL of a prefix: s3://bucket/prefix; with endpoint, region, anonymous, freshness,
//!             attributes, writes, staging and stagingSize, as `umemcg volume add` has
//!             them
//! dir         a directory of the node
//! volume      a volume of the daemon's configuration
//! memory.max  512Mi; and the other limits of the pod's group, by the names of the control files
//! ```
//!
//! Any other key is refused: a limit with a typo would otherwise be silently ignored.

use std::collections::{BTreeMap, HashMap};

use tonic::Status;
use umemcg_control::numbers::{parse_limit_v1, parse_limit_v2, parse_number, parse_size_v1};

use crate::daemon::VolumeData;
use crate::pod::KUBERNETES;

/// The control files that attributes may set.
const LIMITS: [&str; 14] = [
    "memory.dirty_background_limit_in_bytes",
    "memory.dirty_background_ratio",
    "memory.dirty_limit_in_bytes",
    "memory.dirty_ratio",
    "memory.high",
    "memory.high_wmark_distance",
    "memory.limit_in_bytes",
    "memory.low",
    "memory.low_wmark_distance",
    "memory.max",
    "memory.min",
    "memory.soft_limit_in_bytes",
    "memory.wmark_ratio",
    "memory.wmark_scale_factor",
];
/// Attributes of a store, each with its option of `umemcg volume add`.
const STORE_OPTIONS: [(&str, &str); 8] = [
    ("endpoint", "endpoint"),
    ("region", "region"),
    ("anonymous", "anonymous"),
    ("freshness", "freshness"),
    ("attributes", "attributes"),
    ("staging", "staging"),
    ("stagingSize", "staging-size"),
    ("writes", "writes"),
];

/// The attributes of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Where its data is.
    pub data: VolumeData,
    /// Limits of the pod's group: the text to write, by control file.
    pub limits: BTreeMap<String, String>,
}

impl Attributes {
    /// Parses a volume context, or the parameters of a StorageClass. Keys of Kubernetes itself are
    /// ignored.
    ///
    /// # Errors
    /// `InvalidArgument` if a key is missing, unknown, or does not go with another.
    pub fn parse(given: &HashMap<String, String>) -> Result<Self, Status> {
        let is_own = |key: &str| !KUBERNETES.iter().any(|prefix| key.starts_with(prefix));
        let mut left: BTreeMap<&str, &str> =
            given.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        left.retain(|key, _| is_own(key));
        let mut limits = BTreeMap::new();
        for file in LIMITS {
            if let Some(value) = left.remove(file) {
                limits.insert(file.to_owned(), limit_of(file, value)?);
            }
        }
        let data = take_data(&mut left)?;
        match left.keys().next() {
            None => Ok(Self { data, limits }),
            Some(key) => Err(Status::invalid_argument(format!(
                "there is no attribute `{key}`, or it does not go with the type of the volume"
            ))),
        }
    }
}

fn take_data(left: &mut BTreeMap<&str, &str>) -> Result<VolumeData, Status> {
    let kind = left.remove("type").unwrap_or_default();
    let mut needed = |key| {
        let value = left.remove(key).filter(|value| !value.is_empty());
        value.ok_or_else(|| Status::invalid_argument(format!("a volume of type {kind} needs `{key}`")))
    };
    match kind {
        "tmpfs" => {
            let size = left.remove("size").map(size_of).transpose()?;
            Ok(VolumeData::Tmpfs { size_bytes: size })
        }
        "store" => {
            let url = needed("store")?.to_owned();
            let given = |(key, option): (&str, &str)| Some((option.to_owned(), left.remove(key)?.to_owned()));
            Ok(VolumeData::Store { url, options: STORE_OPTIONS.into_iter().filter_map(given).collect() })
        }
        "dir" => match needed("dir")? {
            path if path.starts_with('/') => Ok(VolumeData::Dir { path: path.to_owned() }),
            path => Err(Status::invalid_argument(format!("`{path}` is no absolute path"))),
        },
        "existing" => Ok(VolumeData::Existing { volume: needed("volume")?.to_owned() }),
        _ => Err(Status::invalid_argument(format!(
            "`{kind}` is no type of a volume; write type: tmpfs, store, dir or existing"
        ))),
    }
}

/// Returns the text to write into a control file. The daemon checks it again; checking it here
/// refuses a StorageClass with an invalid limit before any of its volumes is made.
fn limit_of(file: &str, value: &str) -> Result<String, Status> {
    let text = of_quantity(value);
    let written = text.as_bytes();
    let parsed = match file {
        "memory.max" | "memory.high" | "memory.low" | "memory.min" => parse_limit_v2(written),
        "memory.limit_in_bytes" | "memory.soft_limit_in_bytes" => parse_limit_v1(written),
        file if file.ends_with("_in_bytes") || file.ends_with("_distance") => parse_size_v1(written),
        _ => parse_number(written),
    };
    match parsed {
        Ok(_) => Ok(text),
        Err(_) => Err(Status::invalid_argument(format!("`{file}` cannot be `{value}`"))),
    }
}

/// Returns a quantity of Kubernetes (`512Mi`) in the notation of control files (`512M`, with powers
/// of 1024).
fn of_quantity(text: &str) -> String {
    let is_binary = |rest: &str| rest.ends_with(['K', 'M', 'G', 'T', 'P', 'E']);
    text.strip_suffix('i').filter(|rest| is_binary(rest)).unwrap_or(text).to_owned()
}

fn size_of(text: &str) -> Result<u64, Status> {
    let bytes = umemcg_base::parse_size(of_quantity(text).as_bytes()).ok().filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| {
        Status::invalid_argument(format!("`{text}` is not a size; write a number with Ki, Mi, Gi or Ti"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Attributes, Status> {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        Attributes::parse(&pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn attributes_say_where_data_is_and_what_a_pod_may_use() {
        let tmpfs = parsed("type=tmpfs size=2Mi memory.max=512Mi memory.high=max csi.storage.k8s.io/x=1");
        let tmpfs = tmpfs.unwrap();
        assert_eq!(tmpfs.data, VolumeData::Tmpfs { size_bytes: Some(2 << 20) });
        assert_eq!(tmpfs.limits["memory.max"], "512M");
        assert_eq!(tmpfs.limits["memory.high"], "max");
        let store = parsed("type=store store=s3://b/p region=eu stagingSize=1G staging=/var/s").unwrap();
        let VolumeData::Store { url, options } = store.data else { panic!("{store:?}") };
        assert_eq!((url.as_str(), options["staging-size"].as_str(), options.len()), ("s3://b/p", "1G", 3));
        assert_eq!(parsed("type=dir dir=/srv").unwrap().data, VolumeData::Dir { path: "/srv".into() });
        let existing = VolumeData::Existing { volume: "data".into() };
        assert_eq!(parsed("type=existing volume=data").unwrap().data, existing);
    }

    #[test]
    fn each_limit_is_taken_as_its_control_file_takes_it() {
        for file in LIMITS {
            let value = if file.ends_with("ratio") || file.ends_with("factor") { "5" } else { "64Mi" };
            let taken = parsed(&format!("type=tmpfs {file}={value}")).unwrap();
            assert_eq!(taken.limits[file], value.trim_end_matches('i'));
        }
        parsed("type=tmpfs memory.limit_in_bytes=-1 memory.low=max memory.high=512Mi").unwrap();
    }

    #[test]
    fn what_is_missing_unknown_or_contradictory_is_refused() {
        for (text, word) in [
            ("", "type"),
            ("type=nfs", "nfs"),
            ("type=store", "`store`"),
            ("type=store store=", "`store`"),
            ("type=dir", "`dir`"),
            ("type=dir dir=srv", "absolute"),
            ("type=tmpfs size=0", "size"),
            ("type=tmpfs size=lots", "size"),
            ("type=tmpfs store=s3://b", "`store`"),
            ("type=store store=s3://b size=1Gi", "`size`"),
            ("type=tmpfs memory.maximum=1", "memory.maximum"),
            ("type=tmpfs cgroup.procs=1", "cgroup.procs"),
            ("type=tmpfs memory.wmark_high=1Gi", "memory.wmark_high"),
            ("type=tmpfs memory.max=lots", "memory.max"),
            ("type=tmpfs memory.max=-1", "memory.max"),
            ("type=tmpfs memory.high=", "memory.high"),
            ("type=tmpfs memory.soft_limit_in_bytes=max", "memory.soft_limit_in_bytes"),
            ("type=tmpfs memory.dirty_limit_in_bytes=-1", "memory.dirty_limit_in_bytes"),
            ("type=tmpfs memory.dirty_ratio=20%", "memory.dirty_ratio"),
        ] {
            let refused = parsed(text).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().contains(word), "{text}: {refused}");
        }
    }
}
