//! The pod of a published volume, as passed by kubelet (`podInfoOnMount`).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::names::group_name;

/// Prefixes of the keys of the volume context set by Kubernetes itself.
pub const KUBERNETES: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];
const NAME: &str = "csi.storage.k8s.io/pod.name";
const NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const UID: &str = "csi.storage.k8s.io/pod.uid";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// A pod and its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// The name of the group of its namespace.
    pub namespace: String,
    /// The name of its group below.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl Pod {
    /// Returns the pod of a volume context; none if it names no pod, as with other orchestrators.
    ///
    /// # Errors
    /// `InvalidArgument` if a part is missing or impossible.
    pub fn of(context: &HashMap<String, String>) -> Result<Option<Self>, Status> {
        let known = [NAMESPACE, NAME, UID].map(|key| context.get(key));
        let [Some(namespace), Some(name), Some(uid)] = known else {
            if known == [None; 3] {
                return Ok(None);
            }
            return Err(Status::invalid_argument(format!(
                "the volume context names a pod, but not all of {NAMESPACE}, {NAME} and {UID}"
            )));
        };
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if uid.is_empty() || uid.len() > 128 || !uid.bytes().all(is_usual) {
            return Err(Status::invalid_argument(format!("`{uid}` is not the uid of a pod")));
        }
        let (namespace, name) = (group_name("namespace", namespace)?, group_name("name", name)?);
        Ok(Some(Self { namespace, name, uid: uid.clone() }))
    }

    /// Returns the path of its group.
    pub fn group(&self) -> String {
        format!("/{}/{}", self.namespace, self.name)
    }
}

/// Returns the namespace in a volume context: the pod's, else the claim's (set by the provisioner
/// with `--extra-create-metadata`); empty without either.
pub fn namespace_of(context: &HashMap<String, String>) -> &str {
    context.get(NAMESPACE).or_else(|| context.get(CLAIM_NAMESPACE)).map_or("", String::as_str)
}

/// Returns whether a volume context is that of an ephemeral inline volume.
pub fn is_ephemeral(context: &HashMap<String, String>) -> bool {
    context.get(EPHEMERAL).is_some_and(|text| text == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(parts: &[(&str, &str)]) -> HashMap<String, String> {
        parts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_pod_is_named_whole_or_not_at_all() {
        assert_eq!(Pod::of(&context(&[("type", "tmpfs")])).unwrap(), None);
        let whole = context(&[(NAMESPACE, "shop"), (NAME, "tasks"), (UID, "9c69-45ba")]);
        let pod = Pod::of(&whole).unwrap().unwrap();
        assert_eq!((pod.group().as_str(), pod.uid.as_str()), ("/shop/_tasks", "9c69-45ba"));
        for wrong in [
            context(&[(NAME, "web")]),
            context(&[(NAMESPACE, "shop"), (NAME, "web")]),
            context(&[(NAMESPACE, "shop"), (NAME, "../x"), (UID, "1")]),
            context(&[(NAMESPACE, "shop"), (NAME, "web"), (UID, "1=/x")]),
            context(&[(NAMESPACE, "shop"), (NAME, "web"), (UID, "")]),
        ] {
            assert_eq!(Pod::of(&wrong).unwrap_err().code(), tonic::Code::InvalidArgument, "{wrong:?}");
        }
    }

    #[test]
    fn the_namespace_of_a_pod_comes_before_that_of_a_claim() {
        assert_eq!(namespace_of(&context(&[(NAMESPACE, "shop"), (CLAIM_NAMESPACE, "bank")])), "shop");
        assert_eq!(namespace_of(&context(&[(CLAIM_NAMESPACE, "bank")])), "bank");
        assert_eq!(namespace_of(&context(&[("type", "tmpfs")])), "");
    }

    #[test]
    fn only_the_word_true_makes_a_volume_ephemeral() {
        assert!(is_ephemeral(&context(&[(EPHEMERAL, "true")])));
        assert!(!is_ephemeral(&context(&[(EPHEMERAL, "false")])) && !is_ephemeral(&context(&[])));
    }
}
