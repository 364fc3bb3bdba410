//! The group of a process: set through a control file, inherited, or chosen by a rule.

use crate::harness::{Mount, Options, needs_mount, until};

#[test]
fn a_shell_that_joins_is_listed_until_it_ends() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/g").good();
    mount.sh("echo 0 > $CG/g/cgroup.procs; grep -qx $$ $CG/g/cgroup.procs; grep -qx $$ $CG/g/tasks").good();
    mount
        .sh("echo $$ > $CG/g/tasks; grep -qx $$ $CG/g/tasks; echo $$ > $CG/tasks; not 'grep -qx $$ $CG/g/tasks'")
        .good();
    assert_eq!(mount.sh("cat $CG/g/cgroup.procs").good(), "");
    // While a process is in it, it cannot be removed.
    mount.sh("echo $$ > $CG/g/tasks; rmdir $CG/g").bad("busy");
    mount.sh("rmdir $CG/g").good();
    mount.umount();
}

#[test]
fn children_belong_to_the_group_however_they_were_made() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/g $CG/h").good();
    for (name, command) in [
        ("child", "head -c 1M /dev/zero > $MNT/child"),
        ("grandchild", "bash -c 'bash -c \"head -c 1M /dev/zero\"' > $MNT/grandchild"),
        (
            "orphan",
            "( (trap '' HUP; head -c 1M /dev/zero > $MNT/orphan; echo > $MNT/../done) & ); cat < $MNT/../done",
        ),
        (
            "session",
            "setsid --fork bash -c 'head -c 1M /dev/zero > $MNT/session; echo > $MNT/../done'; cat < $MNT/../done",
        ),
    ] {
        let before = mount.value("g", "memory.stat", "pgpgin");
        let fifo = if command.contains("done") { "mkfifo $MNT/../done" } else { "" };
        mount.sh_in("g", &format!("{fifo}\n{command}\nrm -f $MNT/../done")).good();
        let charged = mount.value("g", "memory.stat", "pgpgin") - before;
        assert!(charged >= 256, "{name}: only {charged} pages were charged to its group");
    }
    assert_eq!(mount.value("h", "memory.stat", "pgpgin"), 0);
    mount.umount();
}

#[test]
fn rules_put_users_and_paths_into_groups_that_appear() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options {
        arguments: vec![
            "--rule",
            "uid:65534=/users/{0}",
            "--rule",
            "path:/projects/*=/p/{1}",
            "--allow-other",
        ],
        ..Options::default()
    });
    mount.sh("chmod 755 $MNT/..; chmod 777 $MNT; mkdir -p $MNT/projects/red $MNT/projects/blue").good();
    mount
        .sh("head -c 1M /dev/zero > $MNT/projects/red/f; head -c 2M /dev/zero > $MNT/projects/blue/f")
        .good();
    mount.sh("head -c 3M /dev/zero > $MNT/elsewhere").good();
    mount
        .sh("setpriv --reuid=65534 --regid=65534 --clear-groups head -c 1M $MNT/elsewhere > /dev/null")
        .good();
    mount
        .sh("setpriv --reuid=65534 --regid=65534 --clear-groups bash -c 'head -c 1M /dev/zero > $MNT/theirs'")
        .good();
    assert!(mount.value("p/red", "memory.stat", "cache") >= 1 << 20);
    assert!(mount.value("p/blue", "memory.stat", "cache") >= 2 << 20);
    assert!(mount.value("users/65534", "memory.stat", "cache") >= 1 << 20);
    // A move through a control file takes precedence.
    mount.sh("mkdir $CG/hand").good();
    mount.sh_in("hand", "head -c 1M /dev/zero > $MNT/projects/red/g").good();
    assert!(mount.value("hand", "memory.stat", "cache") >= 1 << 20);
    mount.umount();
}

#[test]
fn write_back_of_a_mapping_is_charged_to_the_opener() {
    needs_mount!();
    let mut mount = Mount::start_with_own_pages();
    mount.sh("mkdir $CG/g; head -c 4M /dev/zero > $DATA/mapped").good();
    std::fs::write(
        mount.outside().join("map.c"),
        // Between the faults and the write-back it empties the cache, so that only the write-back
        // is left in it.
        "#include <fcntl.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
         int main(int argc, char **argv) {\n    (void)argc;\n    int fd = open(argv[1], O_RDWR);\n\
         char *m = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);\n    if (m == MAP_FAILED) return 1;\n\
         memset(m, 7, 4 << 20);\n    int control = open(argv[2], O_WRONLY);\n\
         if (write(control, \"0\", 1) != 1) return 2;\n    return msync(m, 4 << 20, MS_SYNC);\n}\n",
    )
    .unwrap();
    mount.sh("cd $MNT/..; gcc -O1 -o map map.c").good();
    mount.sh_in("g", "$MNT/../map $MNT/mapped $CG/g/memory.force_empty").good();
    let cached = mount.value("g", "memory.stat", "cache");
    assert!(cached >= 4 << 20, "only {cached} bytes belong to the group that mapped the file");
    mount.umount();
}

#[test]
fn groups_that_were_removed_leave_no_memory_resident() {
    needs_mount!();
    const NR_GROUPS: u64 = 12_000;
    let mount = Mount::start();
    let before = mount.daemon_memory("VmRSS");
    let make_and_remove = "import os, sys
names = ['%s/g%d' % (sys.argv[1], n) for n in range(int(sys.argv[2]))]
list(map(os.mkdir, names)); print(open(sys.argv[1] + '/memory.usage_in_bytes').read()); list(map(os.rmdir, names))";
    let ran = mount.sh(&format!("python3 -c \"{make_and_remove}\" $CG {NR_GROUPS}"));
    let charged: u64 = ran.good().parse().unwrap();
    assert!(charged > NR_GROUPS * 1024, "{charged}");
    until("their memory is given back", || mount.daemon_memory("VmRSS") < before + charged / 2);
}
