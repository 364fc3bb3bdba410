//! A node for one test: a daemon with volumes and control files, the plugin as a process, and a
//! directory that stands for kubelet's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::process::{Pid, Signal, kill_process};
use umemcg_csi::client::Client;
use umemcg_csi::v1::volume_capability::access_mode::Mode;
use umemcg_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use umemcg_csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};

use crate::csi::slow_daemon::SlowDaemon;
use crate::harness::{Mount, Options, TIMEOUT, cannot_run, until};

pub use umemcg_csi::client::Code;

/// Returns the code of a request that must fail.
#[track_caller]
pub fn code(result: Result<(), umemcg_csi::client::Status>) -> Code {
    result.expect_err("the request must fail").code()
}

/// Repeats a request as kubelet does, while the plugin says that something is in use.
#[track_caller]
pub fn until_not_aborted(mut request: impl FnMut() -> Result<(), umemcg_csi::client::Status>) {
    until("the request is not aborted", || match request() {
        Ok(()) => true,
        Err(status) if status.code() == Code::Aborted => false,
        Err(status) => panic!("{status}"),
    });
}

pub fn block() -> AccessType {
    AccessType::Block(BlockVolume {})
}

/// A pod, as Kubernetes tells of it.
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Pod {
    pub fn new(namespace: &str, name: &str) -> Self {
        let letters = name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let uid = format!("9c691886-45ba-{letters}-{}", std::process::id());
        Self { namespace: namespace.into(), name: name.into(), uid }
    }
}

pub struct Node {
    pub mount: Mount,
    plugin: Option<Child>,
    /// The socket of the daemon, if the plugin is told one.
    admin: Option<PathBuf>,
}

impl Node {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[], None)
    }

    /// Starts one whose daemon has more arguments.
    #[track_caller]
    pub fn start_with_daemon(arguments: &[&str]) -> Self {
        Self::start_with(arguments, None)
    }

    /// Starts one whose plugin asks the daemon through a socket that may hold requests back.
    #[track_caller]
    pub fn start_behind_slow_daemon() -> (Self, SlowDaemon) {
        let slow = SlowDaemon::new();
        let node = Self::start_with(&["--socket", slow.behind().to_str().unwrap()], Some(slow.socket()));
        (node, slow)
    }

    #[track_caller]
    fn start_with(arguments: &[&str], admin: Option<PathBuf>) -> Self {
        let options = Options { volumes: true, arguments: arguments.into(), ..Options::default() };
        let mut node = Self { mount: Mount::start_with(&options), plugin: None, admin };
        fs::create_dir(node.mount.outside().join("pods")).unwrap();
        node.start_plugin();
        node
    }

    pub fn socket(&self) -> PathBuf {
        self.mount.outside().join("csi.sock")
    }

    pub fn state(&self) -> PathBuf {
        self.mount.outside().join("state")
    }

    pub fn plugin_command(&self) -> Command {
        // If the test is killed, so is the plugin.
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "--",
            crate::harness::PROGRAM,
            "csi",
            "--node-id",
            "node-1",
            "--endpoint",
        ]);
        command.arg(format!("unix://{}", self.socket().display()));
        command.arg("--mount").arg(self.mount.mnt()).arg("--control").arg(self.mount.cg());
        command.arg("--state").arg(self.state());
        if let Some(socket) = &self.admin {
            command.arg("--socket").arg(socket);
        }
        command
    }

    #[track_caller]
    pub fn start_plugin(&mut self) {
        let mut plugin = self.plugin_command().stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let line = crate::harness::lines(plugin.stdout.take().unwrap()).recv_timeout(TIMEOUT);
        self.plugin = Some(plugin);
        line.expect("the plugin says that it serves");
    }

    pub fn kill_plugin(&mut self) {
        let mut plugin = self.plugin.take().expect("a plugin runs");
        plugin.kill().unwrap();
        plugin.wait().unwrap();
    }

    /// Ends the plugin as Kubernetes does. Returns how it ended, and how long that took.
    #[track_caller]
    pub fn end_plugin(&mut self) -> (ExitStatus, Duration) {
        let mut plugin = self.plugin.take().expect("a plugin runs");
        let began = Instant::now();
        kill_process(Pid::from_child(&plugin), Signal::TERM).unwrap();
        (plugin.wait().unwrap(), began.elapsed())
    }

    /// Waits until the plugin is ready; returns whether the daemon serves.
    #[track_caller]
    pub fn is_ready(&self, client: &Client) -> bool {
        until("the plugin is ready", || client.probe().map_or(true, |is_ready| is_ready));
        client.probe().is_ok()
    }

    #[track_caller]
    pub fn connect(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// Makes a mount namespace that receives what is mounted below the pods' directory.
    pub fn namespace_below(&self) -> Namespace {
        let pods = self.mount.outside().join("pods");
        mount_bind(&pods, &pods).unwrap();
        mount_change(&pods, MountPropagationFlags::SHARED).unwrap();
        let mut process = Command::new("unshare");
        process.args(["--mount", "--propagation", "slave", "sh", "-c", "echo; exec sleep 600"]);
        let mut process = process.stdout(Stdio::piped()).spawn().unwrap();
        let ready = crate::harness::lines(process.stdout.take().unwrap()).recv_timeout(TIMEOUT);
        let namespace = Namespace { process, pods };
        ready.expect("the namespace is made");
        namespace
    }

    /// Returns where kubelet wants a pod's volume.
    pub fn target(&self, pod: &Pod) -> PathBuf {
        self.mount.outside().join("pods").join(&pod.uid)
    }

    pub fn staged(&self, id: &str, attributes: &[(&str, &str)]) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(capability()),
            volume_context: context(attributes),
            ..NodeStageVolumeRequest::default()
        }
    }

    pub fn published(
        &self,
        id: &str,
        pod: Option<&Pod>,
        attributes: &[(&str, &str)],
    ) -> NodePublishVolumeRequest {
        let mut volume_context = context(attributes);
        let target = match pod {
            Some(pod) => self.target(pod),
            None => self.mount.outside().join("pods/none"),
        };
        for (key, value) in
            pod.iter().flat_map(|pod| [("namespace", &pod.namespace), ("name", &pod.name), ("uid", &pod.uid)])
        {
            volume_context.insert(format!("csi.storage.k8s.io/pod.{key}"), value.clone());
        }
        NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: "/staging".into(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability()),
            volume_context,
            ..NodePublishVolumeRequest::default()
        }
    }

    pub fn ephemeral(&self, id: &str, pod: &Pod, attributes: &[(&str, &str)]) -> NodePublishVolumeRequest {
        let mut request = self.published(id, Some(pod), attributes);
        request.staging_target_path.clear();
        request.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
        request
    }

    #[track_caller]
    pub fn unpublish_until_done(&self, client: &Client, id: &str, pod: &Pod) {
        let target = self.target(pod);
        until_not_aborted(|| client.unpublish(id, &target.display().to_string()));
        assert!(!target.exists(), "{}", target.display());
    }

    #[track_caller]
    pub fn unstage_until_done(&self, client: &Client, id: &str) {
        until_not_aborted(|| client.unstage(id, "/staging"));
    }

    /// Returns the number of records of targets.
    pub fn nr_records(&self) -> usize {
        names(&self.state().join("published")).len()
    }

    /// Returns the number of records of staged volumes.
    pub fn nr_staged(&self) -> usize {
        names(&self.state().join("staged")).len()
    }

    /// Removes the record of a pod's target.
    #[track_caller]
    pub fn lose_record_of(&self, pod: &Pod) {
        let dir = self.state().join("published");
        let names = names(&dir);
        let is_of = |name: &&String| fs::read_to_string(dir.join(name)).unwrap().contains(&pod.uid);
        fs::remove_file(dir.join(names.iter().find(is_of).expect("a record"))).unwrap();
    }

    /// Panics if anything is left of a pod: a mount, a directory, a volume, a group, a record.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let pods = self.mount.outside().join("pods");
        assert_eq!(names(&pods), [""; 0]);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(pods.to_str().unwrap()), "{table}");
        assert_eq!(names(&self.mount.mnt()), [""; 0]);
        let groups = fs::read_dir(self.mount.cg()).unwrap().map(|entry| entry.unwrap());
        let groups: Vec<_> = groups.filter(|entry| entry.file_type().unwrap().is_dir()).collect();
        assert!(groups.is_empty(), "{groups:?}");
        for kind in ["staged", "published"] {
            assert_eq!(names(&self.state().join(kind)), [""; 0], "{kind}");
        }
    }

    /// Panics if the daemon still places a pod's processes into its group: here, into one of that
    /// name that an operator has made since.
    #[track_caller]
    pub fn assert_no_rule(&self, pod: &Pod) {
        let Some(cgroup) = PodCgroup::new(&format!("kubepods/pod{}", pod.uid)) else { return };
        let (path, mnt) = (format!("{}/{}", pod.namespace, pod.name), self.mount.mnt().display().to_string());
        fs::create_dir_all(self.mount.cg().join(&path)).unwrap();
        self.mount.umemcg(&["volume", "add", "probe", "--tmpfs", "--mount", &mnt]).good();
        self.mount.sh(&format!("{}\necho x > {mnt}/probe/f", cgroup.join_script())).good();
        assert_eq!(self.mount.number(&path, "memory.usage_in_bytes"), 0, "a rule is left");
        self.mount.umemcg(&["volume", "remove", "probe", "--mount", &mnt]).good();
        for group in [&path, &pod.namespace] {
            fs::remove_dir(self.mount.cg().join(group)).unwrap();
        }
    }

    /// Returns how many descriptors the daemon and the plugin have open.
    pub fn nr_descriptors(&self) -> BTreeMap<&'static str, usize> {
        let nr = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let daemon = self.mount.pid().as_raw_nonzero().get().cast_unsigned();
        let plugin = self.plugin.as_ref().expect("a plugin runs").id();
        BTreeMap::from([("daemon", nr(daemon)), ("plugin", nr(plugin))])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut plugin) = self.plugin.take() {
            let _ = plugin.kill();
            let _ = plugin.wait();
        }
        // What a failed test leaves mounted would keep the daemon.
        let pods = self.mount.outside().join("pods");
        for name in names(&pods) {
            let _ = unmount(pods.join(name), UnmountFlags::DETACH);
        }
    }
}

/// Names in a directory; drafts of a plugin that was killed are left out.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

fn context(attributes: &[(&str, &str)]) -> HashMap<String, String> {
    attributes.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

/// A cgroup with the name that a driver of kubelet gives, three levels down, where one can be made.
pub struct PodCgroup(PathBuf);

impl PodCgroup {
    pub fn new(name: &str) -> Option<Self> {
        let tops = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let top = tops.iter().find(|top| Path::new(top).join("cgroup.procs").exists());
        let path = Path::new(top.copied().unwrap_or(tops[2])).join(name);
        // Another test may be removing the levels above.
        let mut made = fs::create_dir_all(&path);
        for _ in 0..100 {
            if made.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
                made = fs::create_dir_all(&path);
            }
        }
        match made {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                cannot_run(&format!("{}: {error}", path.display()));
                None
            }
        }
    }

    /// Returns the line by which a shell joins it.
    pub fn join_script(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }
}

impl Drop for PodCgroup {
    fn drop(&mut self) {
        // Processes that have ended may be in it for a moment. The levels above may be another
        // test's.
        let _ = crate::harness::holds_in_time(|| fs::remove_dir(&self.0).is_ok());
        let _ = self.0.ancestors().skip(1).take(2).try_for_each(fs::remove_dir);
    }
}

/// A process in a mount namespace of its own.
pub struct Namespace {
    process: Child,
    pods: PathBuf,
}

impl Namespace {
    /// Returns the options of the topmost mount at a path, as a process there sees it.
    pub fn mount_options(&self, point: &Path) -> BTreeSet<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.process.id())).unwrap();
        let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = fields.rev().find(|fields| fields[4] == point.to_str().unwrap());
        mount.map_or(BTreeSet::new(), |fields| fields[5].split(',').map(str::to_owned).collect())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = unmount(&self.pods, UnmountFlags::DETACH);
    }
}
