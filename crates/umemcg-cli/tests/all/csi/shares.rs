//! The shares of namespaces in the pool, where pods have inline volumes of memory.

use std::fs;

use crate::csi::node::{Code, Node, Pod};
use crate::harness::{SLACK_BYTES, needs_mount};

const TMPFS: [(&str, &str); 1] = [("type", "tmpfs")];

/// Returns the pool of a node, less the reserve.
fn usable_bytes(node: &Node) -> u64 {
    let pool_bytes = node.mount.number(".", "memory.limit_in_bytes");
    pool_bytes - pool_bytes / 16
}

/// Returns the text of the limit of a namespace.
fn limit_of(node: &Node, namespace: &str) -> String {
    fs::read_to_string(node.mount.cg().join(namespace).join("memory.max")).unwrap().trim().to_owned()
}

#[test]
fn a_namespace_gets_half_of_what_the_others_leave() {
    needs_mount!();
    let node = Node::start();
    let client = node.connect();
    let [greedy, second, other, late] =
        [("shop", "greedy"), ("shop", "second"), ("bank", "web"), ("late", "job")]
            .map(|(namespace, name)| Pod::new(namespace, name));
    let usable_bytes = usable_bytes(&node);
    client.publish(node.ephemeral("a", &greedy, &[("type", "tmpfs"), ("size", "1Ti")])).unwrap();
    assert_eq!(node.mount.number("shop", "memory.max"), usable_bytes / 2);
    // A volume of memory that an administrator has defined is the administrator's to bound.
    client.stage(node.staged("c", &TMPFS)).unwrap();
    client.publish(node.published("c", Some(&other), &TMPFS)).unwrap();
    assert_eq!(limit_of(&node, "bank"), "max");
    client.publish(node.ephemeral("d", &late, &TMPFS)).unwrap();
    assert_eq!(node.mount.number("late", "memory.max"), usable_bytes / 4);
    node.unpublish_until_done(&client, "d", &late);
    // A limit set by an operator stays, also if it is the whole pool. It leaves nothing to others.
    fs::write(node.mount.cg().join("shop/memory.max"), (usable_bytes / 15 * 16).to_string()).unwrap();
    client.publish(node.ephemeral("b", &second, &TMPFS)).unwrap();
    assert_eq!(node.mount.number("shop", "memory.max"), usable_bytes / 15 * 16);
    let refused = client.publish(node.ephemeral("d", &late, &TMPFS)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("limit of the group /late"), "{refused}");
    node.unpublish_until_done(&client, "d", &late);
    node.mount.group("late", "16M");
    client.publish(node.ephemeral("d", &late, &TMPFS)).unwrap();
    for (id, pod) in [("a", &greedy), ("b", &second), ("c", &other), ("d", &late)] {
        node.unpublish_until_done(&client, id, pod);
    }
    assert_eq!(limit_of(&node, "late"), (16 << 20).to_string());
    fs::remove_dir(node.mount.cg().join("late")).unwrap();
    node.unstage_until_done(&client, "c");
    node.assert_nothing_left();
}

#[test]
fn a_share_goes_with_the_last_inline_volume_of_memory() {
    needs_mount!();
    let node = Node::start();
    let client = node.connect();
    let [inline, last, stays] = ["inline", "last", "stays"].map(|name| Pod::new("shop", name));
    client.stage(node.staged("data", &TMPFS)).unwrap();
    client.publish(node.published("data", Some(&stays), &TMPFS)).unwrap();
    client.publish(node.ephemeral("a", &inline, &TMPFS)).unwrap();
    client.publish(node.ephemeral("b", &last, &TMPFS)).unwrap();
    node.unpublish_until_done(&client, "a", &inline);
    assert_eq!(node.mount.number("shop", "memory.max"), usable_bytes(&node) / 2);
    node.unpublish_until_done(&client, "b", &last);
    assert_eq!(limit_of(&node, "shop"), "max");
    node.unpublish_until_done(&client, "data", &stays);
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn a_hundred_pods_have_the_share_of_their_namespace() {
    needs_mount!();
    let node = Node::start();
    let client = node.connect();
    let pods: Vec<Pod> = (0..100).map(|number| Pod::new("shop", &format!("web-{number}"))).collect();
    let bank = Pod::new("bank", "web");
    for pod in pods.iter().chain([&bank]) {
        client.publish(node.ephemeral(&pod.name, pod, &TMPFS)).unwrap();
    }
    let fill = |pod: &Pod, nr_megabytes: u32| {
        let target = node.target(pod).display().to_string();
        let write = format!("dd if=/dev/zero of={target}/f bs=1M count={nr_megabytes} status=none");
        node.mount.sh_in(&format!("{}/{}", pod.namespace, pod.name), &write).status.success()
    };
    let nr_filled = pods.iter().filter(|&pod| fill(pod, 2)).count();
    assert!(nr_filled < pods.len(), "the pods got 200 MiB");
    assert!(!fill(&bank, 256), "one pod got the pool");
    for namespace in ["shop", "bank"] {
        let used_bytes = node.mount.number(namespace, "memory.usage_in_bytes");
        let limit_bytes = node.mount.number(namespace, "memory.max");
        assert!(used_bytes.abs_diff(limit_bytes) <= SLACK_BYTES, "/{namespace}: {used_bytes}, {limit_bytes}");
    }
    // A neighbour without a limit is charged for each name that it looks up.
    let (files, mnt) = (node.mount.outside().join("files"), node.mount.mnt().display().to_string());
    fs::create_dir(&files).unwrap();
    for number in 0..2000 {
        fs::write(files.join(number.to_string()), "").unwrap();
    }
    let files = files.display().to_string();
    node.mount.umemcg(&["volume", "add", "files", "--dir", &files, "--mount", &mnt]).good();
    fs::create_dir(node.mount.cg().join("calm")).unwrap();
    let found = node.mount.sh_in("calm", &format!("stat --format=%n {mnt}/files/* | wc -l"));
    assert_eq!(found.good(), "2000");
    for pod in pods.iter().chain([&bank]) {
        node.unpublish_until_done(&client, &pod.name, pod);
    }
    assert_eq!(node.nr_records(), 0);
}
