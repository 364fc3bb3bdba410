//! An ordinary user that mounts through fusermount3.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::harness::{Mount, Options, cannot_run, is_mounted, needs_mount};

/// `nobody`: a user that every system has.
const NOBODY: u32 = 65534;

fn start_as_ordinary_user() -> Option<Mount> {
    start_as_ordinary_user_with(Options { pool: "64M", ..Options::default() })
}

/// A daemon and shells of an ordinary user, where one may mount.
pub fn start_as_ordinary_user_with(options: Options<'_>) -> Option<Mount> {
    let helper =
        ["/usr/bin/fusermount3", "/bin/fusermount3"].map(Path::new).into_iter().find(|path| path.exists());
    let set_id =
        helper.is_some_and(|path| fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o4000 != 0));
    if !set_id {
        cannot_run("needs a set-user-id fusermount3");
        return None;
    }
    // fusermount3 opens the device as the user.
    if !fs::metadata("/dev/fuse").is_ok_and(|metadata| metadata.mode() & 0o006 == 0o006) {
        cannot_run("/dev/fuse is closed to users; `make deps` opens it");
        return None;
    }
    Some(Mount::start_with(&Options { user: Some(NOBODY), ..options }))
}

#[test]
fn an_ordinary_user_mounts_limits_and_unmounts() {
    needs_mount!();
    let Some(mut mount) = start_as_ordinary_user() else { return };
    mount.group("A", "8m");
    mount
        .sh_in("A", "dd if=/dev/zero of=$MNT/big bs=1M count=40; sha256sum < $MNT/big > $MNT/hash; cp -a $MNT/hash $MNT/copy")
        .good();
    assert!(
        mount.number_as_user("A", "memory.max_usage_in_bytes") <= (8 << 20) + crate::harness::SLACK_BYTES
    );
    assert!(mount.number_as_user("A", "memory.failcnt") > 0);
    assert_eq!(mount.sh("stat -c %u $MNT/big").good(), NOBODY.to_string());
    mount.sh("$UMEMCG sync $MNT").good();
    mount.umount();
    assert!(!is_mounted(&mount.mnt()) && !is_mounted(&mount.cg()));
    let expected = mount.sh("head -c 40M /dev/zero | sha256sum");
    assert_eq!(mount.sh("cat $DATA/copy").good(), expected.good());
}

#[test]
fn a_users_mount_is_taken_over_after_a_crash() {
    needs_mount!();
    let Some(mut mount) = start_as_ordinary_user() else { return };
    mount.sh("echo kept > $MNT/file; sync $MNT/file").good();
    mount.kill_daemon();
    mount.start_daemon(&["--pool", "64M"]);
    assert_eq!(mount.sh("cat $MNT/file").good(), "kept");
    mount.umount();
}

#[test]
fn root_may_end_a_users_mount() {
    needs_mount!();
    let Some(mut mount) = start_as_ordinary_user() else { return };
    let mountpoint = mount.mnt();
    let status =
        std::process::Command::new(crate::harness::PROGRAM).arg("umount").arg(&mountpoint).status().unwrap();
    assert!(status.success());
    assert!(mount.wait().status.success());
}

#[test]
fn an_ordinary_user_has_volumes_and_root_may_ask_about_them() {
    needs_mount!();
    let Some(mut mount) =
        start_as_ordinary_user_with(Options { pool: "64M", volumes: true, ..Options::default() })
    else {
        return;
    };
    mount
        .sh("$UMEMCG volume add mine --dir $DATA --mount $MNT; $UMEMCG volume add scratch --tmpfs --mount $MNT; \
             echo x > $MNT/mine/f; cp $MNT/mine/f $MNT/scratch/; mkdir $MNT/scratch/d; test $(stat -c %u $MNT/scratch/d) = 65534")
        .good();
    let mnt = mount.mnt();
    let listed = std::process::Command::new(crate::harness::PROGRAM)
        .args(["volume", "list", "--mount", mnt.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("scratch"), "{listed:?}");
    mount.umount();
}
