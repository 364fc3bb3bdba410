//! The directories that the product makes.

use crate::tidy::{NO_PRODUCT, shipped_files, without_tests};

/// The sources that make directories, by the end of their paths.
const PLACES: &[&str] = &[
    // The directories of a daemon's own. All others are the user's, the kernel's or the kubelet's.
    "umemcg-base/src/own_directory.rs",
    // In a temporary directory that is new.
    "umemcg-cli/src/demo/stage.rs",
    // The mount point of an option.
    "umemcg-cli/src/mount_helper.rs",
    // A target of the kubelet, and groups on the control mount.
    "umemcg-csi/src/mounts.rs",
    "umemcg-csi/src/pod_groups.rs",
    // In a hierarchy of the kernel.
    "umemcg-fuse/src/classify/mirror.rs",
    // The bucket of a `file:///` URL.
    "umemcg-object/src/local_directory.rs",
    // On a volume.
    "umemcg-vfs/src/host/volume/create.rs",
];

/// A directory with a name that can be foreseen may be another user's. `own_directory` checks that.
#[test]
fn directories_of_a_daemon_are_made_in_one_way() {
    const MAKES: [&str; 3] = ["DirBuilder", "fs::create_dir", "fs::mkdir"];
    let makes = |text: &str| {
        let code = |line: &str| !line.trim_start().starts_with("//");
        without_tests(text).any(|(_, line)| code(line) && MAKES.iter().any(|word| line.contains(word)))
    };
    let files = shipped_files(&NO_PRODUCT);
    let making: Vec<&str> =
        files.iter().filter(|(_, text)| makes(text)).map(|(name, _)| name.as_str()).collect();
    let wrong: Vec<_> =
        making.iter().filter(|name| !PLACES.iter().any(|place| name.ends_with(place))).collect();
    assert!(wrong.is_empty(), "make the daemon's own directories with `own_directory`: {wrong:?}");
    assert_eq!(making.len(), PLACES.len(), "an entry of PLACES is not needed any more: {making:?}");
}
