//! Rules for the pods of Kubernetes, added and removed while a mount is served: a pod's uid, and
//! its group.
//!
//! Kubelet names the cgroup of a pod by its uid, in one of two forms, by its cgroup driver. Pods of
//! the class Guaranteed have no level for it:
//!
//! ```text
//! systemd    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9c69_45ba.slice/…
//!            /kubepods.slice/kubepods-pod9c69_45ba.slice/…
//! cgroupfs   /kubepods/burstable/pod9c69-45ba/…
//!            /kubepods/pod9c69-45ba/…
//! ```
//!
//! Some installations put `kubelet` in front (`/kubelet.slice/kubelet-kubepods.slice/…`), and a
//! daemon in a cgroup namespace of its own sees `..` in front. A `kubepods` anywhere else does not
//! count: a user with the right to make cgroups below its own could claim to be another's pod.
//!
//! Such a rule comes before all others, and places only into an existing group.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use thiserror::Error;
use umemcg::{Engine, Group};
use umemcg_base::LeafRwLock;

use super::{mirror, proc_files};

/// The most pods at a time: many times the pods of a node.
const NR_PODS_MAX: usize = 4096;
/// Longest uid, and longest path of a group, in bytes.
const UID_BYTES_MAX: usize = 128;
const GROUP_BYTES_MAX: usize = 4096;

/// The reason why the rule of a pod was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AddPodError {
    /// Letters, digits and dashes.
    #[error("this is not the uid of a pod: 1 to 128 letters, digits and dashes")]
    Uid,
    /// A path from the root.
    #[error("this is not the path of a group below the root, such as /shop/web-0")]
    Group,
    /// There is no room.
    #[error("there are rules for {NR_PODS_MAX} pods already")]
    TooMany,
}

/// The groups of pods, by uid.
#[derive(Debug, Default)]
pub struct PodRules {
    groups: LeafRwLock<HashMap<String, Vec<OsString>>>,
}

impl PodRules {
    /// Places the processes of a pod into a group, from their next lookup on.
    ///
    /// # Errors
    /// [`AddPodError`]; then nothing has changed.
    pub(super) fn add(&self, uid: &str, group: &str) -> Result<(), AddPodError> {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if uid.is_empty() || uid.len() > UID_BYTES_MAX || !uid.bytes().all(is_usual) {
            return Err(AddPodError::Uid);
        }
        let below = group.strip_prefix('/').filter(|below| below.len() < GROUP_BYTES_MAX);
        let names: Vec<OsString> = below.ok_or(AddPodError::Group)?.split('/').map(OsString::from).collect();
        if names.iter().any(|name| ["", ".", ".."].iter().any(|bad| name == OsStr::new(bad))) {
            return Err(AddPodError::Group);
        }
        let mut groups = self.groups.write();
        if groups.len() >= NR_PODS_MAX && !groups.contains_key(uid) {
            return Err(AddPodError::TooMany);
        }
        groups.insert(uid.to_owned(), names);
        Ok(())
    }

    /// Removes the rule of a pod, if there is one.
    pub(super) fn remove(&self, uid: &str) {
        self.groups.write().remove(uid);
    }

    /// Returns whether there is no rule.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.read().is_empty()
    }

    /// Returns the group for the pod of a process with these cgroups; none if the pod has no rule,
    /// or the group is gone.
    pub(super) fn place(&self, cgroups: &[u8], engine: &Engine) -> Option<Arc<Group>> {
        if self.is_empty() {
            return None;
        }
        let lines = proc_files::cgroup_lines(cgroups).filter(|(name, _)| !mirror::is_ours(name));
        let names = lines
            .filter_map(|(_, path)| pod_uid(path))
            .find_map(|uid| self.groups.read().get(&uid).cloned())?;
        let mut at = Arc::clone(engine.root());
        for name in &names {
            at = at.child(name)?;
        }
        Some(at)
    }
}

/// Returns the uid of a cgroup's pod.
fn pod_uid(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let mut names = path.split('/').filter(|name| !name.is_empty()).skip_while(|name| *name == "..");
    let top = names.next()?;
    let kubepods = if ["kubelet", "kubelet.slice"].contains(&top) { names.next()? } else { top };
    let is_kubepods = match kubepods {
        "kubepods" => top == "kubepods" || top == "kubelet",
        "kubepods.slice" => top == "kubepods.slice",
        "kubelet-kubepods.slice" => top == "kubelet.slice",
        _ => false,
    };
    if !is_kubepods {
        return None;
    }
    let of_slice = |name: &str| Some(name.strip_suffix(".slice")?.rsplit_once("-pod")?.1.replace('_', "-"));
    let of_name = |name: &str| match kubepods.ends_with(".slice") {
        true => of_slice(name),
        false => name.strip_prefix("pod").map(str::to_owned),
    };
    let first = names.next()?;
    let uid = of_name(first).or_else(|| {
        let class = first.strip_suffix(".slice").and_then(|name| name.rsplit('-').next()).unwrap_or(first);
        ["burstable", "besteffort"].contains(&class).then(|| of_name(names.next()?))?
    });
    uid.filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::EngineConfig;

    #[test]
    fn both_drivers_name_a_pod_by_its_uid() {
        const UID: &str = "9c691886-a3f0-45ba-8d3b-000000000001";
        let of =
            |path: &str| pod_uid(path.replace("UID_", &UID.replace('-', "_")).replace("UID", UID).as_bytes());
        for path in [
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID_.slice/cri-containerd-1f.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID_.slice/crio-1f.scope/a",
            "/kubepods.slice/kubepods-podUID_.slice",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podUID_.slice/x",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUID_.slice/x",
            "/../../kubepods.slice/kubepods-podUID_.slice/x",
            "/kubepods/burstable/podUID/1f",
            "/kubepods/besteffort/podUID/1f/podother",
            "/kubepods/podUID/1f",
            "/kubelet/kubepods/burstable/podUID",
        ] {
            assert_eq!(of(path).as_deref(), Some(UID), "{path}");
        }
        for path in [
            "/",
            "",
            "/kubepods",
            "/kubepods/burstable",
            "/kubepods/pod",
            "/kubepods/burstable/x/podUID",
            "/kubepods/system/podUID",
            "/podUID",
            "/user.slice/user-1000.slice/kubepods/podUID",
            "/user.slice/kubepods.slice/kubepods-podUID_.slice",
            "/kubelet.slice/kubepods.slice/kubepods-podUID_.slice",
            "/kubepods.slice/podUID",
            "/kubepods.slice/kubepods-burstable.slice/cri-containerd-podUID_.scope",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn a_pod_is_placed_while_its_rule_and_its_group_exist() {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let rules = PodRules::default();
        let cgroups = b"12:memory:/kubepods/burstable/pod7-a/c\n0::/kubepods/podother\n";
        let placed = || rules.place(cgroups, &engine).map(|group| group.path().display().to_string());
        assert_eq!(placed(), None);
        rules.add("7-a", "/shop/web").unwrap();
        assert_eq!(placed(), None, "the group is not made by a rule");
        let shop = engine.create_group(engine.root(), "shop".as_ref()).unwrap();
        engine.create_group(&shop, "web".as_ref()).unwrap();
        assert_eq!(placed().as_deref(), Some("/shop/web"));
        rules.remove("7-a");
        assert_eq!(placed(), None);
    }

    #[test]
    fn rules_of_pods_are_checked_and_bounded() {
        let rules = PodRules::default();
        for uid in ["", "a/b", "a b", &"x".repeat(129)] {
            assert_eq!(rules.add(uid, "/a"), Err(AddPodError::Uid));
        }
        for group in ["", "a", "/", "/a//b", "/a/../b", "/."] {
            assert_eq!(rules.add("1", group), Err(AddPodError::Group), "{group}");
        }
        for number in 0..NR_PODS_MAX {
            rules.add(&number.to_string(), "/a").unwrap();
        }
        assert_eq!(rules.add("one-more", "/a"), Err(AddPodError::TooMany));
        rules.add("1", "/b").unwrap();
        rules.remove("1");
        rules.add("one-more", "/a").unwrap();
    }
}
