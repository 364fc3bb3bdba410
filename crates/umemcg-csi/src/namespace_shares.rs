//! The limits of namespaces with inline volumes of memory.
//!
//! Such memory cannot be reclaimed, and the author of a pod chooses its size. So the group of its
//! namespace gets a limit, unless it has one: a share of the memory that the limits of the other
//! namespaces with pods leave. A reserve stays for everything without a limit, such as the names
//! that a neighbour looks up. The limit goes with the last inline volume of memory.
//!
//! ```text
//! decide    one namespace at a time: read the limits of the others, record the share
//! write     the limit, after that: the write may wait for reclaim, and so for a store that hangs
//! ```
//!
//! Between the two steps the record counts as the limit. So a slow store of one namespace delays no
//! other, and no memory is given twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tonic::Status;

use crate::busy_keys::BusyKeys;
use crate::inline_policy::InlinePolicy;
use crate::pod::Pod;
use crate::pod_groups::PodGroups;
use crate::records::{Published, Records};

/// One part in so many of the pool is kept out of all shares.
const RESERVE_PART: u64 = 16;
/// The key that is taken while a share is decided.
const DECIDING: &str = "shares";

/// The shares. Calls block. The caller holds the lock on the groups of the namespace.
pub struct NamespaceShares {
    groups: Arc<PodGroups>,
    records: Arc<Records>,
    busy: Arc<BusyKeys>,
    policy: InlinePolicy,
}

impl NamespaceShares {
    /// Returns the shares of the namespaces in these groups.
    pub fn new(
        groups: Arc<PodGroups>,
        records: Arc<Records>,
        busy: Arc<BusyKeys>,
        policy: InlinePolicy,
    ) -> Self {
        Self { groups, records, busy, policy }
    }

    /// Limits the group of a pod's namespace to its share, unless it has a limit. Returns the share
    /// for the record of the volume; `None` if the limit is an operator's.
    ///
    /// # Errors
    /// `ResourceExhausted` if too little is left; those of the records and control files.
    pub fn give(&self, pod: &Pod, record: &str, known: &Published) -> Result<Option<u64>, Status> {
        if let Some(limit) = self.groups.limit_of_namespace(&pod.namespace)? {
            let published = self.records.all::<Published>()?;
            let is_share = of_namespace(&published, &pod.namespace).any(|own| own.share_bytes == Some(limit));
            return Ok(is_share.then_some(limit));
        }
        let share = self.decide(pod, record, known)?;
        self.groups.limit_namespace(&pod.namespace, share)?;
        Ok(Some(share))
    }

    /// Takes the limit away that the plugin gave the group of a pod's namespace, with its last
    /// inline volume of memory. A limit changed by an operator stays.
    ///
    /// # Errors
    /// Those of the control files.
    pub fn take_back(
        &self,
        pod: &Pod,
        share_bytes: Option<u64>,
        others: &BTreeMap<String, Published>,
    ) -> Result<(), Status> {
        let is_needed = of_namespace(others, &pod.namespace).any(Published::is_inline_memory);
        match share_bytes {
            Some(share) if !is_needed => self.groups.lift_limit(&pod.namespace, share),
            _ => Ok(()),
        }
    }

    /// Decides the share of a pod's namespace, and writes it into the records of the inline volumes
    /// of memory there.
    fn decide(&self, pod: &Pod, record: &str, known: &Published) -> Result<u64, Status> {
        let _one_at_a_time = self.busy.take(DECIDING);
        let pool_bytes = self.groups.pool_bytes()?;
        let published = self.records.all::<Published>()?;
        let namespaces = published.values().filter_map(|known| known.pod.as_ref());
        let namespaces: BTreeSet<&str> = namespaces.map(|pod| pod.namespace.as_str()).collect();
        let mut left_bytes = pool_bytes - pool_bytes / RESERVE_PART;
        for other in namespaces.into_iter().filter(|other| *other != pod.namespace) {
            let limit = self.groups.limit_of_namespace(other)?;
            let limit = limit.unwrap_or_else(|| unwritten_share(&published, other));
            left_bytes = left_bytes.saturating_sub(limit);
        }
        let share = self.policy.share_of(&pod.namespace, left_bytes)?;
        for (name, own) in published.iter().filter(|(_, own)| own.is_of_namespace(pod)) {
            if name != record && own.is_inline_memory() {
                self.records.keep(name, &Published { share_bytes: Some(share), ..own.clone() })?;
            }
        }
        let known = Published { share_bytes: Some(share), is_limited: false, ..known.clone() };
        self.records.keep(record, &known)?;
        Ok(share)
    }
}

/// Returns the share of a namespace that has been decided, where its limit may not be written yet.
fn unwritten_share(published: &BTreeMap<String, Published>, namespace: &str) -> u64 {
    let unwritten = of_namespace(published, namespace).filter(|known| !known.is_limited);
    unwritten.filter_map(|known| known.share_bytes).max().unwrap_or(0)
}

/// Returns the records of the pods of a namespace.
fn of_namespace<'a>(
    published: &'a BTreeMap<String, Published>,
    namespace: &'a str,
) -> impl Iterator<Item = &'a Published> {
    published.values().filter(move |known| known.pod.as_ref().is_some_and(|pod| pod.namespace == namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::VolumeData;
    use crate::records::Staged;
    use std::fs;
    use std::path::{Path, PathBuf};

    const POOL_BYTES: u64 = 256 << 20;
    /// The pool without the reserve.
    const USABLE_BYTES: u64 = POOL_BYTES / 16 * 15;

    /// Control files that are plain files: a write to `memory.max` changes no other file.
    struct Control {
        dir: tempfile::TempDir,
        shares: NamespaceShares,
        records: Arc<Records>,
    }

    impl Control {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let records = Arc::new(Records::open(&dir.path().join("state")).unwrap());
            let groups = Arc::new(PodGroups::new(dir.path()));
            let known = Arc::clone(&records);
            let shares = NamespaceShares::new(groups, known, Arc::default(), InlinePolicy::default());
            let control = Self { dir, shares, records };
            control.write("", POOL_BYTES);
            control
        }

        fn path(&self, namespace: &str, file: &str) -> PathBuf {
            self.dir.path().join(namespace).join(file)
        }

        fn write(&self, namespace: &str, limit: u64) {
            fs::write(self.path(namespace, "memory.limit_in_bytes"), format!("{limit}\n")).unwrap();
        }

        /// Makes the group of a namespace without a limit, and the record of a pod there.
        fn publish(&self, namespace: &str) -> (Pod, String, Published) {
            fs::create_dir_all(self.dir.path().join(namespace)).unwrap();
            self.write(namespace, i64::MAX as u64);
            fs::write(self.path(namespace, "memory.max"), "").unwrap();
            let known = inline(namespace);
            let record = self.records.add_published(&known).unwrap();
            (known.pod.clone().unwrap(), record, known)
        }
    }

    fn inline(namespace: &str) -> Published {
        let data = VolumeData::Tmpfs { size_bytes: None };
        Published {
            target: "/t".into(),
            volume: Staged { volume_id: "v".into(), name: "v".into(), data, namespace: String::new() },
            is_ephemeral: true,
            is_read_only: false,
            flags: Vec::new(),
            is_single: false,
            pod: Some(Pod { namespace: namespace.into(), name: "web".into(), uid: "1".into() }),
            limits: BTreeMap::new(),
            owns_namespace: false,
            owns_group: false,
            is_limited: false,
            share_bytes: None,
        }
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_share_counts_before_its_limit_is_written() {
        let control = Control::new();
        let (shop, record, known) = control.publish("shop");
        assert_eq!(control.shares.decide(&shop, &record, &known).unwrap(), USABLE_BYTES / 2);
        let (bank, record, known) = control.publish("bank");
        assert_eq!(control.shares.give(&bank, &record, &known).unwrap(), Some(USABLE_BYTES / 4));
        assert_eq!(text(&control.path("bank", "memory.max")), (USABLE_BYTES / 4).to_string());
    }

    #[test]
    fn namespaces_at_the_same_time_get_no_memory_twice() {
        let control = Control::new();
        let pods: Vec<_> = (0..12).map(|number| control.publish(&format!("shop-{number}"))).collect();
        let shares = &control.shares;
        let given: Vec<Option<u64>> = std::thread::scope(|scope| {
            let give = pods.iter().map(|(pod, record, known)| {
                scope.spawn(move || shares.give(pod, record, known).unwrap_or_default())
            });
            let giving: Vec<_> = give.collect();
            giving.into_iter().map(|giving| giving.join().unwrap()).collect()
        });
        assert!(given.iter().flatten().sum::<u64>() <= USABLE_BYTES, "{given:?}");
        assert!(given.contains(&Some(USABLE_BYTES / 2)), "{given:?}");
        // The last ones find less than the least share.
        assert!(given.contains(&None), "{given:?}");
    }

    #[test]
    fn a_share_ends_with_the_last_inline_volume_of_memory() {
        let control = Control::new();
        let (pod, record, known) = control.publish("shop");
        let share = control.shares.give(&pod, &record, &known).unwrap();
        control.write("shop", share.unwrap());
        let second = inline("shop");
        let others = BTreeMap::from([("second".to_owned(), second.clone())]);
        assert_eq!(control.shares.give(&pod, "second", &second).unwrap(), share);
        let max = control.path("shop", "memory.max");
        fs::write(&max, "").unwrap();
        control.shares.take_back(&pod, share, &others).unwrap();
        assert_eq!(text(&max), "", "another volume is left");
        control.shares.take_back(&pod, share, &BTreeMap::new()).unwrap();
        assert_eq!(text(&max), "max");
        // A limit that an operator has set meanwhile stays.
        fs::write(&max, "").unwrap();
        control.write("shop", POOL_BYTES);
        assert_eq!(control.shares.give(&pod, "second", &second).unwrap(), None);
        control.shares.take_back(&pod, share, &BTreeMap::new()).unwrap();
        assert_eq!(text(&max), "");
    }
}
