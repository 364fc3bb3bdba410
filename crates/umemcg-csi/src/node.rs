//! The work of the plugin on a node.
//!
//! ```text
//! stage      the daemon gets the volume
//! publish    1 record   2 volume, if it is an ephemeral one   3 group and limits   4 rule   5 mount
//! unpublish  mount, rule, group, volume, record
//! unstage    the daemon makes the volume durable and removes it
//! ```
//!
//! Each step first checks whether it is done, so each request can be repeated, also by a new plugin
//! after the old one was killed halfway. Kubelet publishes again now and then
//! (`requiresRepublish`), and so restores the state missing in a restarted daemon.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tonic::{Code, Status};

use crate::access::Access;
use crate::attributes::Attributes;
use crate::busy_keys::{BusyKey, BusyKeys};
use crate::daemon::{Daemon, DaemonError};
use crate::inline_policy::InlinePolicy;
use crate::mounts;
use crate::names::volume_name;
use crate::namespace_shares::NamespaceShares;
use crate::node_volumes::NodeVolumes;
use crate::pod::{Pod, is_ephemeral, namespace_of};
use crate::pod_groups::PodGroups;
use crate::records::{Published, Records, Staged};
use crate::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};

/// The node. Calls block.
pub struct Node {
    daemon: Arc<dyn Daemon>,
    /// The daemon's mount, with a directory for each volume.
    root: PathBuf,
    groups: Arc<PodGroups>,
    shares: NamespaceShares,
    volumes: NodeVolumes,
    records: Arc<Records>,
    busy: Arc<BusyKeys>,
    inline: InlinePolicy,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Node").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Node {
    /// Creates the node of a daemon.
    pub fn new(
        daemon: Arc<dyn Daemon>,
        root: &Path,
        control: &Path,
        records: Arc<Records>,
        inline: InlinePolicy,
    ) -> Self {
        let (groups, busy) = (Arc::new(PodGroups::new(control)), Arc::<BusyKeys>::default());
        let volumes = NodeVolumes::new(Arc::clone(&daemon), Arc::clone(&records));
        let shares = {
            let (groups, records, busy) = (Arc::clone(&groups), Arc::clone(&records), Arc::clone(&busy));
            NamespaceShares::new(groups, records, busy, inline.clone())
        };
        Self { daemon, root: root.to_owned(), groups, shares, volumes, records, busy, inline }
    }

    /// Checks that the daemon serves.
    ///
    /// # Errors
    /// `FailedPrecondition` if it does not.
    pub fn probe(&self) -> Result<(), Status> {
        let unwell = |what: String| Status::failed_precondition(format!("the daemon does not serve: {what}"));
        self.daemon.volumes().map_err(|error| unwell(error.to_string()))?;
        let mounted = mounts::data_mount(&self.root).and_then(|_| self.groups.check());
        mounted.map_err(|error| unwell(error.message().to_owned()))
    }

    /// Adds a volume to the daemon.
    ///
    /// # Errors
    /// The code that the specification names.
    pub fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), Status> {
        let name = volume_name(&request.volume_id)?;
        absolute("staging target path", &request.staging_target_path)?;
        no_secrets(&request.secrets)?;
        let data = Attributes::parse(&request.volume_context)?.data;
        Access::of(request.volume_capability.as_ref(), &data)?;
        let _one_at_a_time = self.only(&name)?;
        let namespace = namespace_of(&request.volume_context).to_owned();
        let staged = Staged { volume_id: request.volume_id.clone(), name, data, namespace };
        match self.records.get::<Staged>(&staged.name)? {
            Some(known) if known.data == staged.data => return self.volumes.ensure(&staged),
            Some(_) => return Err(Status::already_exists("the volume is staged with other attributes")),
            None => {
                self.volumes.check_free(&staged)?;
                self.records.keep(&staged.name, &staged)?;
            }
        }
        self.volumes.ensure(&staged).inspect_err(|status| {
            // After other errors the daemon may have the volume: the record stays for the next
            // request.
            if matches!(status.code(), Code::InvalidArgument | Code::NotFound) {
                let _ = self.records.forget_staged(&staged.name);
            }
        })
    }

    /// Makes the data of a volume durable and removes the volume from the daemon.
    ///
    /// # Errors
    /// `FailedPrecondition` while it is published; `Internal` if data cannot be made durable.
    pub fn unstage(&self, volume_id: &str, staging_path: &str) -> Result<(), Status> {
        let name = volume_name(volume_id)?;
        absolute("staging target path", staging_path)?;
        let _one_at_a_time = self.only(&name)?;
        let Some(staged) = self.records.get::<Staged>(&name)? else {
            self.volumes.check_gone(&name)?;
            return self.records.forget_staged(&name);
        };
        let published = self.records.all::<Published>()?;
        if let Some(other) = published.values().find(|other| other.volume.name == name) {
            let target = &other.target;
            return Err(Status::failed_precondition(format!("the volume is published at {target}")));
        }
        self.volumes.remove(&staged)?;
        self.records.forget_staged(&name)
    }

    /// Shows a volume to a pod, in a group with the pod's limits.
    ///
    /// # Errors
    /// The code given by the specification. A failed request leaves nothing behind, unless an
    /// earlier request for the same target had left it, or the daemon did not answer
    /// (`Unavailable`).
    pub fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), Status> {
        let name = volume_name(&request.volume_id)?;
        absolute("target path", &request.target_path)?;
        no_secrets(&request.secrets)?;
        let wanted = self.wanted(request, name)?;
        let _one_at_a_time = self.only(&wanted.volume.name)?;
        if !wanted.is_ephemeral {
            let staged = self.records.get::<Staged>(&wanted.volume.name)?;
            let staged =
                staged.ok_or_else(|| Status::failed_precondition("the volume is not staged on this node"))?;
            if staged.data != wanted.volume.data {
                return Err(Status::invalid_argument("the volume is staged with other attributes"));
            }
        }
        let published = self.records.all::<Published>()?;
        match published.iter().find(|(_, known)| known.target == wanted.target) {
            Some((record, known)) => self.publish_again(record, known, wanted),
            None => self.publish_first(wanted),
        }
    }

    /// Removes a volume from a target, with the rule, groups and volume made for its pod alone.
    ///
    /// # Errors
    /// `Aborted` while the target or the pod's group is in use; `Internal` if data of an ephemeral
    /// volume cannot be made durable.
    pub fn unpublish(&self, volume_id: &str, target: &str) -> Result<(), Status> {
        let name = volume_name(volume_id)?;
        absolute("target path", target)?;
        let _one_at_a_time = self.only(&name)?;
        let published = self.records.all::<Published>()?;
        let found = published.into_iter().find(|(_, known)| known.target == target);
        let Some((record, known)) = found else {
            mounts::hide(Path::new(target))?;
            return mounts::remove_target(Path::new(target));
        };
        if known.volume.name != name {
            return Err(Status::not_found(format!("{target} shows another volume")));
        }
        self.undo(&record, &known)
    }

    /// Returns the fault of a volume at a path; none if it is healthy.
    ///
    /// # Errors
    /// `NotFound` if the volume is not published there.
    pub fn trouble_at(&self, volume_id: &str, path: &str) -> Result<Option<String>, Status> {
        let name = volume_name(volume_id)?;
        if path.is_empty() {
            return Err(Status::invalid_argument("the request has no volume path"));
        }
        let published = self.records.all::<Published>()?;
        let known = published.values().find(|known| known.volume.name == name && known.target == path);
        let known =
            known.ok_or_else(|| Status::not_found(format!("the volume is not published at {path}")))?;
        // Access the path only if the daemon answers: the access would block on a hung daemon.
        let at_target = || {
            let is_shown = mounts::is_shown(&self.root, known.volume.served_name(), Path::new(path));
            (!is_shown).then(|| format!("{path} does not show the volume"))
        };
        Ok(self.volumes.trouble_of(&known.volume).or_else(at_target))
    }

    /// Returns the fault of a volume of this node; none if it is healthy.
    ///
    /// # Errors
    /// `NotFound` if it is not staged or published here.
    pub fn trouble(&self, volume_id: &str) -> Result<Option<String>, Status> {
        let name = volume_name(volume_id)?;
        let staged = self.records.get::<Staged>(&name)?;
        let published = self.records.all::<Published>()?;
        let mut known = published.into_values().map(|known| known.volume).filter(|known| known.name == name);
        let volume = staged.or_else(|| known.next());
        let volume = volume.ok_or_else(|| Status::not_found("the volume is not on this node"))?;
        Ok(self.volumes.trouble_of(&volume))
    }

    /// Adds a staged volume to a restarted daemon, unless a request is working on it.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn restore_staged(&self, name: &str) -> Result<(), Status> {
        let Some(_one_at_a_time) = self.busy.try_take(&volume_key(name)) else { return Ok(()) };
        // A request may have unstaged it since the caller read the records.
        match self.records.get::<Staged>(name)? {
            Some(volume) => self.volumes.ensure(&volume),
            None => Ok(()),
        }
    }

    /// Restores a published target of this volume in a restarted daemon from its record, unless a
    /// request is working on the volume.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn restore_published(&self, record: &str, volume: &str) -> Result<(), Status> {
        let Some(_one_at_a_time) = self.busy.try_take(&volume_key(volume)) else { return Ok(()) };
        let known = self.records.get::<Published>(record)?;
        match known.filter(|known| known.volume.name == volume) {
            Some(known) => self.ensure(record, &known),
            None => Ok(()),
        }
    }

    /// Returns the record for a request to publish.
    fn wanted(&self, request: &NodePublishVolumeRequest, name: String) -> Result<Published, Status> {
        let attributes = Attributes::parse(&request.volume_context)?;
        let access = Access::of(request.volume_capability.as_ref(), &attributes.data)?;
        let is_ephemeral = is_ephemeral(&request.volume_context);
        if is_ephemeral {
            self.inline.check(&attributes.data)?;
        }
        let pod = Pod::of(&request.volume_context)?;
        if pod.is_none() && !attributes.limits.is_empty() {
            return Err(Status::invalid_argument(
                "there are limits, but no pod to limit; does the CSIDriver have podInfoOnMount?",
            ));
        }
        let (volume_id, namespace) = (request.volume_id.clone(), String::new());
        let volume = Staged { volume_id, name, data: attributes.data, namespace };
        Ok(Published {
            target: request.target_path.clone(),
            volume,
            is_ephemeral,
            is_read_only: request.readonly || access.is_read_only,
            flags: access.flags,
            is_single: access.is_single,
            pod,
            limits: attributes.limits,
            owns_namespace: false,
            owns_group: false,
            is_limited: false,
            share_bytes: None,
        })
    }

    fn publish_again(&self, record: &str, known: &Published, wanted: Published) -> Result<(), Status> {
        let &Published { owns_namespace, owns_group, is_limited, share_bytes, .. } = known;
        // An earlier plugin did not know that such data is read only; the target stays as it is.
        let is_known = wanted.volume.data.is_read_only();
        let is_read_only = if is_known { known.is_read_only } else { wanted.is_read_only };
        let repeated =
            Published { owns_namespace, owns_group, is_limited, share_bytes, is_read_only, ..wanted };
        if *known != repeated {
            let text = format!("{} is published with another volume, pod, limit or option", known.target);
            return Err(Status::already_exists(text));
        }
        self.ensure(record, known)
    }

    fn publish_first(&self, wanted: Published) -> Result<(), Status> {
        if wanted.is_ephemeral {
            self.volumes.check_free(&wanted.volume)?;
        }
        let (record, known) = self.begin(wanted)?;
        self.ensure(&record, &known).inspect_err(|status| {
            // The daemon may still be working on it: the record stays for the next request.
            if status.code() == Code::Unavailable {
                return;
            }
            if let Err(error) = self.undo(&record, &known) {
                tracing::warn!(record, target = known.target, %error, "a failed publish is not undone");
            }
        })
    }

    /// Decides which groups the plugin owns for a new target, and writes the record.
    fn begin(&self, mut wanted: Published) -> Result<(String, Published), Status> {
        let _groups = self.groups_of(&wanted);
        let published = self.records.all::<Published>()?;
        let mut others = published.values().filter(|other| other.volume.name == wanted.volume.name);
        if let Some(other) = others.find(|other| other.is_single || wanted.is_single) {
            let target = &other.target;
            let text = format!("one target at a time may show the volume, and {target} does");
            return Err(Status::failed_precondition(text));
        }
        if let Some(pod) = wanted.pod.clone() {
            agree(&pod, &wanted.limits, &published)?;
            let (has_namespace, has_group) = self.groups.exist(&pod)?;
            let of_namespace = published.values().find(|other| other.is_of_namespace(&pod));
            let of_group = published.values().find(|other| other.is_of_group(&pod));
            wanted.owns_namespace = of_namespace.map_or(!has_namespace, |other| other.owns_namespace);
            wanted.owns_group = of_group.map_or(!has_group, |other| other.owns_group);
        }
        let record = self.records.add_published(&wanted)?;
        Ok((record, wanted))
    }

    /// Carries out the missing steps of a record. Limits already set are kept: an operator may have
    /// changed them since.
    fn ensure(&self, record: &str, known: &Published) -> Result<(), Status> {
        self.volumes.ensure(&known.volume)?;
        if let Some(pod) = &known.pod {
            let _groups = self.groups_of(known);
            let has_group = self.groups.exist(pod)?.1;
            if !known.is_limited || !has_group {
                self.groups.make(pod)?;
                let is_memory = known.is_inline_memory();
                let share_bytes = if is_memory { self.shares.give(pod, record, known)? } else { None };
                // The pod may already run with another of its volumes: a new group gets the limits
                // of all.
                let published = self.records.all::<Published>()?;
                for other in published.values().filter(|other| !has_group && other.is_of_group(pod)) {
                    self.groups.limit(pod, &other.limits)?;
                }
                self.groups.limit(pod, &known.limits)?;
                let known = Published { is_limited: true, share_bytes, ..known.clone() };
                self.records.keep(record, &known)?;
            }
            self.daemon.add_pod(&pod.uid, &pod.group())?;
        }
        let name = known.volume.served_name();
        mounts::show(&self.root, name, Path::new(&known.target), &known.flags, known.is_read_only)
    }

    /// Undoes the steps of a record, except those needed by another record, and removes the record.
    fn undo(&self, record: &str, known: &Published) -> Result<(), Status> {
        let target = Path::new(&known.target);
        mounts::hide(target)?;
        mounts::remove_target(target)?;
        let mut others = self.records.all::<Published>()?;
        others.remove(record);
        let is_shared = others.values().any(|other| other.volume.name == known.volume.name);
        if known.is_ephemeral && !is_shared {
            self.volumes.remove(&known.volume)?;
        }
        // Under one lock: when two targets of a pod end at the same time, exactly one is the last.
        let _groups = self.groups_of(known);
        let mut others = self.records.all::<Published>()?;
        // Read again: the share may have been decided since.
        let share_bytes = others.remove(record).and_then(|own| own.share_bytes);
        self.undo_pod(known, share_bytes, &others)?;
        self.records.forget::<Published>(record)
    }

    /// Removes the rule of a pod and its group, and the group of its namespace, if no other record
    /// belongs to that pod, group or namespace. Removes the limit of a namespace that stays, if no
    /// other record needs it.
    fn undo_pod(
        &self,
        known: &Published,
        share_bytes: Option<u64>,
        others: &BTreeMap<String, Published>,
    ) -> Result<(), Status> {
        let Some(pod) = &known.pod else { return Ok(()) };
        if !others.values().any(|other| other.pod.as_ref() == Some(pod)) {
            match self.daemon.remove_pod(&pod.uid) {
                // The daemon's rules and groups ended with it.
                Ok(()) | Err(DaemonError::Absent(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if known.owns_group && !others.values().any(|other| other.is_of_group(pod)) {
            self.groups.remove(pod)?;
        }
        if known.owns_namespace && !others.values().any(|other| other.is_of_namespace(pod)) {
            self.groups.remove_namespace(pod)?;
        }
        self.shares.take_back(pod, share_bytes, others)
    }

    /// Locks the groups of a target's namespace. Held while control files and records are written,
    /// never during a wait for a store.
    fn groups_of(&self, known: &Published) -> Option<BusyKey> {
        known.pod.as_ref().map(|pod| self.busy.take(&namespace_key(pod)))
    }

    /// Locks a volume for one operation.
    fn only(&self, name: &str) -> Result<BusyKey, Status> {
        let taken = self.busy.try_take(&volume_key(name));
        taken.ok_or_else(|| Status::aborted("another operation on the volume is not finished; try again"))
    }
}

/// Checks that the volumes of one pod do not set a limit to different values.
fn agree(
    pod: &Pod,
    limits: &BTreeMap<String, String>,
    published: &BTreeMap<String, Published>,
) -> Result<(), Status> {
    for other in published.values().filter(|other| other.pod.as_ref() == Some(pod)) {
        let differs = |(file, value): &(&String, &String)| {
            other.limits.get(*file).is_some_and(|theirs| theirs != *value)
        };
        if let Some((file, value)) = limits.iter().find(differs) {
            return Err(Status::invalid_argument(format!(
                "`{file}` is {value} here and {} with the volume {} of the same pod",
                other.limits[file], other.volume.volume_id
            )));
        }
    }
    Ok(())
}

fn volume_key(name: &str) -> String {
    format!("volume {name}")
}

fn namespace_key(pod: &Pod) -> String {
    format!("namespace {}", pod.namespace)
}

fn absolute(what: &str, path: &str) -> Result<(), Status> {
    match path {
        "" => Err(Status::invalid_argument(format!("the request has no {what}"))),
        path if path.starts_with('/') => Ok(()),
        path => Err(Status::invalid_argument(format!("the {what} `{path}` is not absolute"))),
    }
}

/// Refuses secrets. The daemon has the credentials of stores; a secret silently ignored would seem
/// to be used.
fn no_secrets(secrets: &HashMap<String, String>) -> Result<(), Status> {
    match secrets.is_empty() {
        true => Ok(()),
        false => Err(Status::invalid_argument(
            "secrets are not used: the daemon's environment has the credentials of stores",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{KnownVolume, VolumeData};
    use crate::v1::VolumeCapability;
    use crate::v1::volume_capability::access_mode::Mode;
    use crate::v1::volume_capability::{AccessMode, AccessType, MountVolume};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A daemon still adding a volume for an earlier plugin.
    #[derive(Default)]
    struct AddingDaemon {
        nr_adds: AtomicUsize,
        /// It does not answer the request to add a volume.
        is_silent: bool,
        busy: OnceLock<Arc<BusyKeys>>,
    }

    impl Daemon for AddingDaemon {
        fn volumes(&self) -> Result<Vec<KnownVolume>, DaemonError> {
            let has = self.nr_adds.load(Ordering::Relaxed) > 0;
            Ok(has.then(|| KnownVolume { name: "v".into(), trouble: None }).into_iter().collect())
        }

        fn add_volume(&self, _: &str, _: &VolumeData) -> Result<(), DaemonError> {
            if let Some(busy) = self.busy.get() {
                assert!(busy.try_take("namespace shop").is_some(), "others of the namespace wait");
            }
            self.nr_adds.fetch_add(1, Ordering::Relaxed);
            if self.is_silent {
                return Err(DaemonError::Unknown("no answer".into()));
            }
            Err(DaemonError::Refused("there is a volume `v` already".into()))
        }

        fn remove_volume(&self, _: &str) -> Result<(), DaemonError> {
            Ok(())
        }

        fn add_pod(&self, _: &str, _: &str) -> Result<(), DaemonError> {
            Ok(())
        }

        fn remove_pod(&self, _: &str) -> Result<(), DaemonError> {
            Ok(())
        }
    }

    fn node(dir: &Path, daemon: &Arc<AddingDaemon>) -> Node {
        let records = Arc::new(Records::open(dir).unwrap());
        let daemon = Arc::clone(daemon) as Arc<dyn Daemon>;
        Node::new(daemon, dir, dir, records, InlinePolicy::default())
    }

    #[test]
    fn a_volume_that_a_killed_plugin_asked_for_is_taken() {
        let (dir, daemon) = (tempfile::tempdir().unwrap(), Arc::default());
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
        let access_type = Some(AccessType::Mount(MountVolume::default()));
        let request = NodeStageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(VolumeCapability { access_mode, access_type }),
            volume_context: HashMap::from([("type".into(), "tmpfs".into())]),
            ..NodeStageVolumeRequest::default()
        };
        node(dir.path(), &daemon).stage(&request).unwrap();
        assert_eq!(daemon.nr_adds.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_publish_that_the_daemon_may_be_at_keeps_its_record() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path(), &Arc::new(AddingDaemon { is_silent: true, ..AddingDaemon::default() }));
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
        let access_type = Some(AccessType::Mount(MountVolume::default()));
        let context = [("type", "tmpfs"), ("csi.storage.k8s.io/ephemeral", "true")];
        let request = NodePublishVolumeRequest {
            volume_id: "v".into(),
            target_path: dir.path().join("target").display().to_string(),
            volume_capability: Some(VolumeCapability { access_mode, access_type }),
            volume_context: context.map(|(key, value)| (key.into(), value.into())).into(),
            ..NodePublishVolumeRequest::default()
        };
        assert_eq!(node.publish(&request).unwrap_err().code(), Code::Unavailable);
        assert_eq!(node.records.all::<Published>().unwrap().len(), 1);
    }

    #[test]
    fn a_namespace_is_free_while_a_volume_is_waited_for() {
        let (dir, daemon) = (tempfile::tempdir().unwrap(), Arc::default());
        let node = node(dir.path(), &daemon);
        daemon.busy.set(Arc::clone(&node.busy)).unwrap();
        let data = VolumeData::Tmpfs { size_bytes: None };
        let known = Published {
            target: "/t".into(),
            volume: Staged { volume_id: "v".into(), name: "v".into(), data, namespace: String::new() },
            is_ephemeral: true,
            is_read_only: false,
            flags: Vec::new(),
            is_single: false,
            pod: Some(Pod { namespace: "shop".into(), name: "web".into(), uid: "1".into() }),
            limits: BTreeMap::new(),
            owns_namespace: false,
            owns_group: false,
            is_limited: false,
            share_bytes: None,
        };
        let record = node.records.add_published(&known).unwrap();
        // There are no control files here.
        assert_eq!(node.restore_published(&record, "v").unwrap_err().code(), Code::Unavailable);
        assert_eq!(daemon.nr_adds.load(Ordering::Relaxed), 1);
    }
}
