//! The CSI plugin as kubelet uses it: a daemon, the plugin as a process, and requests over its
//! socket. Plugins are killed at any moment; nothing of a pod that has ended is left. Built only
//! with the feature `csi`; `make test-csi` runs it, with more cycles and with `csi-sanity`.
#![cfg(feature = "csi")]

mod node;
mod shares;
mod slow_daemon;
mod trouble;

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use umemcg_csi::client::Client;

use crate::harness::{needs_mount, until};
use node::{Code, Node, Pod, code, until_not_aborted};

const GROUP_LIMITS: [(&str, &str); 3] =
    [("type", "tmpfs"), ("memory.max", "64Mi"), ("memory.soft_limit_in_bytes", "16M")];

#[test]
fn a_pod_gets_a_volume_and_a_group_with_its_limits() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    assert!(node.is_ready(&client));
    client.stage(node.staged("data", &GROUP_LIMITS)).unwrap();
    let request = node.published("data", Some(&pod), &GROUP_LIMITS);
    for _ in 0..2 {
        client.publish(request.clone()).unwrap();
    }
    assert_eq!(node.mount.number("shop/web-0", "memory.max"), 64 << 20);
    assert_eq!(node.mount.number("shop/web-0", "memory.soft_limit_in_bytes"), 16 << 20);
    fs::write(node.target(&pod).join("f"), "x").unwrap();
    assert_eq!(fs::read(node.mount.mnt().join("data/f")).unwrap(), b"x");
    // What an operator changes meanwhile stays.
    fs::write(node.mount.cg().join("shop/web-0/memory.max"), "32M").unwrap();
    client.publish(request).unwrap();
    assert_eq!(node.mount.number("shop/web-0", "memory.max"), 32 << 20);
    assert_eq!(code(client.unstage("data", "/staging")), Code::FailedPrecondition);
    for _ in 0..2 {
        node.unpublish_until_done(&client, "data", &pod);
    }
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn processes_of_a_pods_cgroup_are_charged_to_its_group() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "reader"));
    let of_systemd = pod.uid.replace('-', "_");
    for cgroup in [
        format!("kubepods/burstable/pod{}", pod.uid),
        format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{of_systemd}.slice"),
    ] {
        let Some(cgroup) = node::PodCgroup::new(&cgroup) else { return };
        let limits = [("type", "tmpfs"), ("memory.max", "64Mi")];
        client.publish(node.ephemeral("inline", &pod, &limits)).unwrap();
        let target = node.target(&pod).display().to_string();
        let join = cgroup.join_script();
        node.mount.sh(&format!("{join}\ndd if=/dev/zero of={target}/f bs=1M count=8 status=none")).good();
        let held = node.mount.number("shop/reader", "memory.usage_in_bytes");
        assert!(held >= 8 << 20, "{held} bytes are charged");
        drop(cgroup);
        node.unpublish_until_done(&client, "inline", &pod);
        node.assert_nothing_left();
    }
}

#[test]
fn a_process_of_no_known_pod_is_charged_elsewhere() {
    needs_mount!();
    // To the root group, or as the last rule says.
    for (arguments, payer) in [(&[][..], "."), (&["--rule", "cgroup:/=/other"], "other")] {
        let node = Node::start_with_daemon(arguments);
        let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
        client.publish(node.ephemeral("inline", &pod, &[("type", "tmpfs")])).unwrap();
        let target = node.target(&pod).display().to_string();
        let unknown = Pod::new("shop", "unknown").uid;
        for (number, name) in [
            format!("kubepods/burstable/pod{unknown}"),
            format!("custom/kubepods/pod{}", pod.uid),
            format!("kubepods/custom/pod{}", pod.uid),
        ]
        .iter()
        .enumerate()
        {
            let Some(cgroup) = node::PodCgroup::new(name) else { return };
            let join = cgroup.join_script();
            let write = format!("dd if=/dev/zero of={target}/f{number} bs=1M count=8 status=none");
            node.mount.sh(&format!("{join}\n{write}")).good();
            assert_eq!(node.mount.number("shop/web-0", "memory.usage_in_bytes"), 0, "{name}");
            let held = node.mount.number(payer, "memory.usage_in_bytes");
            assert!(held >= (number as u64 + 1) * (8 << 20), "{name}: {held} bytes are charged to {payer}");
        }
        node.unpublish_until_done(&client, "inline", &pod);
    }
}

#[test]
fn a_killed_plugin_goes_on_between_stage_and_publish() {
    needs_mount!();
    let mut node = Node::start();
    let pod = Pod::new("shop", "web-0");
    node.connect().stage(node.staged("data", &GROUP_LIMITS)).unwrap();
    node.kill_plugin();
    node.start_plugin();
    let client = node.connect();
    client.publish(node.published("data", Some(&pod), &GROUP_LIMITS)).unwrap();
    node.kill_plugin();
    node.start_plugin();
    let client = node.connect();
    node.unpublish_until_done(&client, "data", &pod);
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn a_plugin_killed_amid_publish_leaves_what_can_be_done_again() {
    needs_mount!();
    let mut node = Node::start();
    for round in 0..12_u32 {
        let pod = Pod::new("shop", &format!("web-{round}"));
        let id = format!("inline-{round}");
        let request = node.ephemeral(&id, &pod, &GROUP_LIMITS);
        let client = node.connect();
        let asked = request.clone();
        let publishing = std::thread::spawn(move || client.publish(asked).is_ok());
        // Killed at another of its steps each time: with so many records written, or the group, or
        // the volume, or the mount there.
        until("the plugin came to the step, or to its end", || {
            publishing.is_finished()
                || match round % 4 {
                    0 => true,
                    1 => node.nr_records() > 0,
                    2 => node.mount.cg().join("shop").join(&pod.name).exists(),
                    _ => crate::harness::is_mounted(&node.target(&pod)),
                }
        });
        node.kill_plugin();
        publishing.join().unwrap();
        node.start_plugin();
        let client = node.connect();
        // At each of the steps kubelet goes on and, in another round, gives up instead.
        if round / 4 % 2 == 0 {
            until_not_aborted(|| client.publish(request.clone()));
            assert_eq!(node.mount.number(&format!("shop/{}", pod.name), "memory.max"), 64 << 20);
            fs::write(node.target(&pod).join("f"), "x").unwrap();
        }
        node.unpublish_until_done(&client, &id, &pod);
        node.assert_nothing_left();
        node.assert_no_rule(&pod);
    }
}

#[test]
fn a_plugin_killed_amid_unpublish_leaves_what_can_be_done_again() {
    needs_mount!();
    let mut node = Node::start();
    for round in 0..12_u32 {
        let pod = Pod::new("shop", &format!("ending-{round}"));
        let id = format!("inline-{round}");
        let client = node.connect();
        client.publish(node.ephemeral(&id, &pod, &GROUP_LIMITS)).unwrap();
        let (asked, target) = (id.clone(), node.target(&pod));
        let shown = target.display().to_string();
        let unpublishing = std::thread::spawn(move || client.unpublish(&asked, &shown).is_ok());
        until("the plugin came to the step, or to its end", || {
            unpublishing.is_finished()
                || match round % 4 {
                    0 => true,
                    1 => !crate::harness::is_mounted(&target),
                    2 => !node.mount.mnt().join(&id).exists(),
                    _ => !node.mount.cg().join("shop").join(&pod.name).exists(),
                }
        });
        node.kill_plugin();
        unpublishing.join().unwrap();
        node.start_plugin();
        node.unpublish_until_done(&node.connect(), &id, &pod);
        node.assert_nothing_left();
        node.assert_no_rule(&pod);
    }
}

#[test]
fn a_daemon_started_anew_serves_the_same_pods() {
    needs_mount!();
    let mut node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    client.stage(node.staged("data", &GROUP_LIMITS)).unwrap();
    client.publish(node.published("data", Some(&pod), &GROUP_LIMITS)).unwrap();
    node.mount.kill_daemon();
    assert_eq!(client.probe().unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(code(client.publish(node.published("data", Some(&pod), &GROUP_LIMITS))), Code::Unavailable);
    node.mount.start_daemon(&["--pool", "256M"]);
    client.publish(node.published("data", Some(&pod), &GROUP_LIMITS)).unwrap();
    assert_eq!(node.mount.number("shop/web-0", "memory.max"), 64 << 20);
    fs::write(node.target(&pod).join("f"), "x").unwrap();
    assert_eq!(fs::read(node.mount.mnt().join("data/f")).unwrap(), b"x");
    node.unpublish_until_done(&client, "data", &pod);
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn two_pods_share_a_volume_and_each_has_its_group() {
    needs_mount!();
    let node = Node::start();
    let client = node.connect();
    client.stage(node.staged("data", &[("type", "tmpfs")])).unwrap();
    let pods = ["a", "b"].map(|name| Pod::new("shop", name));
    let work = pods.map(|pod| {
        let request = node.published("data", Some(&pod), &[("type", "tmpfs")]);
        (request, node.target(&pod), node.mount.cg().join("shop").join(&pod.name), node.connect())
    });
    std::thread::scope(|scope| {
        for (request, target, group, client) in work {
            scope.spawn(move || {
                for _ in 0..10 {
                    until_not_aborted(|| client.publish(request.clone()));
                    fs::write(target.join(group.file_name().unwrap()), "x").unwrap();
                    assert!(group.exists());
                    until_not_aborted(|| client.unpublish("data", &request.target_path));
                    assert!(!group.exists() && !target.exists());
                }
            });
        }
    });
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn a_group_that_an_operator_made_stays() {
    needs_mount!();
    let node = Node::start();
    node.mount.group("shop", "128M");
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    client.publish(node.ephemeral("inline", &pod, &[("type", "tmpfs")])).unwrap();
    node.unpublish_until_done(&client, "inline", &pod);
    assert_eq!(node.mount.number("shop", "memory.max"), 128 << 20);
    assert!(!node.mount.cg().join("shop/web-0").exists());
}

#[test]
fn a_pods_group_that_is_in_use_is_removed_later() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    client.publish(node.ephemeral("inline", &pod, &[("type", "tmpfs")])).unwrap();
    let below = node.mount.cg().join("shop/web-0/below");
    fs::create_dir(&below).unwrap();
    let target = node.target(&pod).display().to_string();
    for _ in 0..2 {
        assert_eq!(code(client.unpublish("inline", &target)), Code::Aborted);
        assert_eq!(node.nr_records(), 1);
    }
    fs::remove_dir(&below).unwrap();
    node.unpublish_until_done(&client, "inline", &pod);
    node.assert_nothing_left();
}

#[test]
fn a_read_only_target_refuses_writes() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    let mut request = node.ephemeral("inline", &pod, &[("type", "tmpfs")]);
    request.readonly = true;
    client.publish(request.clone()).unwrap();
    let refused = fs::write(node.target(&pod).join("f"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    request.readonly = false;
    assert_eq!(code(client.publish(request)), Code::AlreadyExists);
    node.unpublish_until_done(&client, "inline", &pod);
    node.assert_nothing_left();
}

#[test]
fn mount_options_hold_outside_the_plugin_too() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    // Another namespace than the plugin's, to which its mounts propagate, as on a node.
    let outside = node.namespace_below();
    let mut request = node.ephemeral("inline", &pod, &[("type", "tmpfs")]);
    request.readonly = true;
    client.publish(request.clone()).unwrap();
    // Once more, as kubelet repeats itself.
    client.publish(request).unwrap();
    let options = outside.mount_options(&node.target(&pod));
    assert!(["ro", "nosuid", "nodev"].iter().all(|option| options.contains(*option)), "{options:?}");
    node.unpublish_until_done(&client, "inline", &pod);
    assert!(outside.mount_options(&node.target(&pod)).is_empty());
    drop(outside);
    node.assert_nothing_left();
}

#[test]
fn a_bad_request_gets_its_code_and_changes_nothing() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    let cases: [(&[(&str, &str)], Code); 8] = [
        (&[], Code::InvalidArgument),
        (&[("type", "nfs")], Code::InvalidArgument),
        (&[("type", "tmpfs"), ("memory.maximum", "1")], Code::InvalidArgument),
        (&[("type", "tmpfs"), ("memory.max", "lots")], Code::InvalidArgument),
        (&[("type", "tmpfs"), ("store", "s3://b")], Code::InvalidArgument),
        (&[("type", "dir"), ("dir", "/etc")], Code::InvalidArgument),
        (&[("type", "store"), ("store", "file:///etc")], Code::InvalidArgument),
        (&[("type", "existing"), ("volume", "none")], Code::InvalidArgument),
    ];
    for (attributes, wanted) in cases {
        assert_eq!(code(client.publish(node.ephemeral("v", &pod, attributes))), wanted, "{attributes:?}");
        node.assert_nothing_left();
    }
    let tmpfs = [("type", "tmpfs")];
    assert_eq!(code(client.publish(node.published("v", Some(&pod), &tmpfs))), Code::FailedPrecondition);
    let limits = node.published("v", None, &GROUP_LIMITS);
    assert_eq!(code(client.publish(limits)), Code::InvalidArgument);
    let mut half = node.ephemeral("v", &pod, &tmpfs);
    half.volume_context.remove("csi.storage.k8s.io/pod.uid");
    assert_eq!(code(client.publish(half)), Code::InvalidArgument);
    let mut block = node.ephemeral("v", &pod, &tmpfs);
    block.volume_capability.as_mut().unwrap().access_type = Some(node::block());
    assert_eq!(code(client.publish(block)), Code::InvalidArgument);
    let mut secret = node.ephemeral("v", &pod, &tmpfs);
    secret.secrets.insert("key".into(), "x".into());
    assert_eq!(code(client.publish(secret)), Code::InvalidArgument);
    let existing = node.staged("v", &[("type", "existing"), ("volume", "none")]);
    assert_eq!(code(client.stage(existing)), Code::NotFound);
    node.assert_nothing_left();
    // A volume that the plugin did not add is not taken.
    let mnt = node.mount.mnt().display().to_string();
    node.mount.umemcg(&["volume", "add", "v", "--tmpfs", "--mount", &mnt]).good();
    assert_eq!(code(client.publish(node.ephemeral("v", &pod, &tmpfs))), Code::FailedPrecondition);
    assert_eq!(code(client.stage(node.staged("v", &tmpfs))), Code::FailedPrecondition);
    assert!(node.mount.mnt().join("v").exists());
}

#[cfg(feature = "object")]
#[test]
fn what_a_store_does_not_take_stays_on_the_node() {
    needs_mount!();
    let mut node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "writer"));
    let [store, away, staging] = ["store", "away", "staging"].map(|name| node.mount.outside().join(name));
    fs::create_dir(&store).unwrap();
    fs::create_dir(&staging).unwrap();
    let url = format!("file://{}", store.display());
    let attributes = [("type", "store"), ("store", &url), ("staging", staging.to_str().unwrap())];
    client.stage(node.staged("data", &attributes)).unwrap();
    client.publish(node.published("data", Some(&pod), &attributes)).unwrap();
    fs::write(node.target(&pod).join("early"), "x").unwrap();
    assert_eq!(fs::read(store.join("early")).unwrap(), b"x");
    let mut late = fs::File::create(node.target(&pod).join("late")).unwrap();
    late.write_all(b"y").unwrap();
    // The store fails: it is no directory any more. So the close does, which `drop` does not tell.
    fs::rename(&store, &away).unwrap();
    fs::write(&store, "").unwrap();
    drop(late);
    node.unpublish_until_done(&client, "data", &pod);
    let refused = client.unstage("data", "/staging").unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    assert!(refused.message().contains("not durable"), "{refused}");
    node.kill_plugin();
    node.start_plugin();
    fs::remove_file(&store).unwrap();
    fs::rename(&away, &store).unwrap();
    let client = node.connect();
    until("the volume is durable", || client.unstage("data", "/staging").is_ok());
    assert_eq!(fs::read(store.join("late")).unwrap(), b"y");
    node.assert_nothing_left();
}

#[test]
fn volumes_of_a_pod_that_contradict_each_other_are_refused() {
    needs_mount!();
    let node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    client.publish(node.ephemeral("one", &pod, &GROUP_LIMITS)).unwrap();
    let other = [("type", "tmpfs"), ("memory.max", "65Mi")];
    let mut second = node.ephemeral("two", &pod, &other);
    second.target_path += "-2";
    assert_eq!(code(client.publish(second.clone())), Code::InvalidArgument);
    second.volume_context.insert("memory.max".into(), "64Mi".into());
    client.publish(second.clone()).unwrap();
    node.unpublish_until_done(&client, "one", &pod);
    assert!(node.mount.cg().join("shop/web-0").exists(), "the other volume's pod runs");
    until_not_aborted(|| client.unpublish("two", &second.target_path));
    node.assert_nothing_left();
}

#[test]
fn names_of_any_characters_are_kept_apart() {
    needs_mount!();
    let node = Node::start();
    let client = node.connect();
    let long = "y".repeat(128);
    let ids = ["a b", "a/b", "../x", ".", "é\n", "x'\"$(id)", &long];
    for (number, id) in ids.iter().enumerate() {
        // Pods may have the names of control files.
        let pod = Pod::new("memory.max", ["tasks", "cgroup.procs", "w.eb"][number % 3]);
        client.publish(node.ephemeral(id, &pod, &GROUP_LIMITS)).unwrap();
        fs::write(node.target(&pod).join("f"), id).unwrap();
        assert!(node.mount.cg().join("_memory.max").is_dir());
        node.unpublish_until_done(&client, id, &pod);
    }
    for (namespace, name) in [("..", "x"), ("a", "x/y"), ("a", ""), ("a\n", "b")] {
        let refused = client.publish(node.ephemeral("v", &Pod::new(namespace, name), &GROUP_LIMITS));
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    node.assert_nothing_left();
}

#[test]
fn a_plugin_starts_with_a_damaged_record() {
    needs_mount!();
    let mut node = Node::start();
    let tmpfs = [("type", "tmpfs")];
    for id in ["good", "bad"] {
        node.connect().stage(node.staged(id, &tmpfs)).unwrap();
    }
    node.kill_plugin();
    fs::write(node.state().join("staged/bad"), "{").unwrap();
    node.start_plugin();
    assert!(node.state().join("damaged/staged/bad").exists());
    let client = node.connect();
    node.unstage_until_done(&client, "good");
    // The plugin cannot know whose it is.
    assert_eq!(code(client.unstage("bad", "/staging")), Code::FailedPrecondition);
    let mnt = node.mount.mnt().display().to_string();
    node.mount.umemcg(&["volume", "remove", "bad", "--mount", &mnt]).good();
    node.unstage_until_done(&client, "bad");
    assert!(!node.state().join("damaged/staged/bad").exists());
    node.assert_nothing_left();
}

#[test]
fn one_plugin_at_a_time_uses_the_records() {
    needs_mount!();
    let node = Node::start();
    crate::harness::run(None, node.plugin_command()).bad("another plugin uses the directory");
    assert!(node.is_ready(&node.connect()));
}

#[test]
fn cycles_under_load_leave_no_mount_group_or_descriptor() {
    needs_mount!();
    let cycles: usize =
        std::env::var("UMEMCG_CSI_CYCLES").ok().map_or(20, |number| number.parse().expect("a number"));
    let node = Node::start();
    let client = node.connect();
    let cycle = |client: &Client, number: usize| {
        let pod = Pod::new("shop", &format!("web-{}", number % 3));
        let id = format!("v{}", number % 2);
        client.publish(node.ephemeral(&id, &pod, &GROUP_LIMITS)).unwrap();
        let target = node.target(&pod);
        // By the directory, so that nothing is written below the mount once it is gone.
        let opened = fs::File::open(&target).unwrap();
        let below = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for written in 0_u32.. {
                    fs::write(format!("{below}/f{}", written % 8), [7; 9000]).unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            until("something is written", || target.join("f3").exists());
            assert_eq!(code(client.unpublish(&id, target.to_str().unwrap())), Code::Aborted, "in use");
            is_over.store(true, Ordering::Relaxed);
        });
        drop(opened);
        node.unpublish_until_done(client, &id, &pod);
    };
    cycle(&client, 0);
    let before = node.nr_descriptors();
    for number in 1..=cycles {
        cycle(&client, number);
    }
    node.assert_nothing_left();
    until("the descriptors are closed", || {
        let now = node.nr_descriptors();
        now.iter().all(|(process, nr)| *nr <= before[process] + 4)
    });
    println!("{cycles} cycles; descriptors before {before:?}, after {:?}", node.nr_descriptors());
}

#[test]
fn a_wrong_command_line_says_what_is_wrong() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(crate::harness::PROGRAM);
        command.arg("csi").args(arguments);
        crate::harness::run(None, command)
    };
    run(&["--node-id", "n"]).bad("--endpoint");
    run(&["--endpoint", "tcp://1.2.3.4:5", "--node-id", "n"]).bad("unix:///PATH");
    run(&["--endpoint", "unix:///tmp/x", "--node-id", ""]).bad("name of the node");
    let file = tempfile::NamedTempFile::new().unwrap();
    let state = file.path().to_str().unwrap();
    run(&["--endpoint", "unix:///tmp/x", "--node-id", "n", "--state", state]).bad(state);
    // A file in the place of the socket is left there.
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().to_str().unwrap();
    run(&["--endpoint", &format!("unix://{state}"), "--node-id", "n", "--state", records]).bad(state);
    assert!(file.path().exists());
}
