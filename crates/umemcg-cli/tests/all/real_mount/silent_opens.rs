//! Silent opens, on an exclusive mount whose pages the kernel keeps: files are opened without a
//! request, and still are what open files have to be.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::harness::{Mount, Options, Stopped, needs_mount, until};

fn start() -> Mount {
    let arguments = vec!["--page-cache", "kernel", "--exclusive"];
    Mount::start_with(&Options { arguments, ..Options::default() })
}

/// Returns how many files without a name the daemon has open.
fn nr_nameless(mount: &Mount) -> u64 {
    let daemon = mount.pid().as_raw_nonzero();
    let listed = mount.sh(&format!("ls -l /proc/{daemon}/fd | grep -c \"$DATA/.*deleted\" || true"));
    listed.good().trim().parse().unwrap()
}

#[test]
fn a_warm_file_is_opened_and_read_without_the_daemon() {
    needs_mount!();
    let mount = start();
    mount.sh("mkdir $DATA/d; seq 10000 > $DATA/d/f").good();
    // Again if another test has had the host drop its caches meanwhile.
    let answers = (0..10).any(|_| {
        mount.sh("cmp $MNT/d/f $DATA/d/f").good();
        // Longer than names and attributes are believed otherwise.
        std::thread::sleep(Duration::from_millis(1500));
        let _stopped = Stopped::new(&mount);
        mount.sh("timeout 3 cmp $MNT/d/f $DATA/d/f").status.success()
    });
    assert!(answers, "each time the daemon was asked");
}

#[test]
fn an_open_file_outlives_its_names_and_other_opens() {
    needs_mount!();
    let mount = start();
    let path = mount.mnt().join("f");
    fs::write(&path, "written first").unwrap();
    let mut reading = File::open(&path).unwrap();
    let writing = OpenOptions::new().write(true).open(&path).unwrap();
    let mut other = File::create(mount.mnt().join("g")).unwrap();
    other.write_all(b"replaces it").unwrap();
    drop(other);
    fs::rename(mount.mnt().join("g"), &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"replaces it");
    writing.write_all_at(b"changed", 8).unwrap();
    writing.sync_all().unwrap();
    // What is read now comes from the daemon.
    rustix::fs::fadvise(&reading, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut text = String::new();
    reading.read_to_string(&mut text).unwrap();
    assert_eq!(text, "written changed");
    writing.set_len(3).unwrap();
    reading.seek(SeekFrom::Start(0)).unwrap();
    text.clear();
    reading.read_to_string(&mut text).unwrap();
    assert_eq!(text, "wri");
}

#[test]
fn a_file_without_a_name_is_released_when_it_is_closed() {
    needs_mount!();
    let mount = start();
    fs::write(mount.mnt().join("f"), vec![7; 1 << 20]).unwrap();
    let file = File::open(mount.mnt().join("f")).unwrap();
    fs::remove_file(mount.mnt().join("f")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, (1 << 20) - 1).unwrap();
    assert_eq!(byte, [7]);
    assert!(nr_nameless(&mount) > 0, "the daemon holds the file");
    drop(file);
    until("the daemon has let the file go", || nr_nameless(&mount) == 0);
}

#[test]
fn appends_and_truncation_reach_the_directory() {
    needs_mount!();
    let mut mount = start();
    mount
        .sh("for n in 1 2 3; do echo $n >> $MNT/log; done; seq 100 > $MNT/cut; echo short > $MNT/cut")
        .good();
    mount.sh("dd if=/dev/zero of=$MNT/synced bs=4k count=3 oflag=sync status=none").good();
    mount.sh("fallocate -l 64k $MNT/long; fallocate -p -o 0 -l 4k $MNT/synced").good();
    mount.umount();
    mount.sh("echo '1 2 3' | cmp - <(paste -sd' ' $DATA/log); echo short | cmp - $DATA/cut").good();
    mount.sh("test $(stat -c %s $DATA/long) = 65536 -a $(stat -c %s $DATA/synced) = 12288").good();
}

#[test]
fn what_cannot_be_written_is_read_through_any_descriptor() {
    needs_mount!();
    let mount = start();
    let path = mount.mnt().join("f");
    mount.sh("echo text > $DATA/f").good();
    if !mount.sh("chattr +i $DATA/f").status.success() {
        return;
    }
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut text = [0; 5];
    let was_read = file.read_exact_at(&mut text, 0);
    let synced = file.sync_all();
    let errors =
        [file.write_all_at(b"more", 0), OpenOptions::new().write(true).truncate(true).open(path).map(drop)];
    mount.sh("chattr -i $DATA/f").good();
    was_read.unwrap();
    synced.unwrap();
    assert_eq!(&text, b"text\n");
    for error in errors {
        assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn files_that_were_created_and_removed_hold_nothing() {
    needs_mount!();
    let mount = start();
    mount.sh("for n in {1..300}; do echo $n > $MNT/$n; done; sync -f $MNT; rm $MNT/*").good();
    until("the daemon has let the files go", || nr_nameless(&mount) == 0);
}

#[test]
fn a_warm_directory_is_listed_without_the_daemon() {
    needs_mount!();
    let mount = start();
    mount.sh("mkdir -p $DATA/d/e; touch $DATA/d/{1..3000} $DATA/d/e/f").good();
    if mount.sh("stat -f -c %T $DATA").good().trim() == "overlayfs" {
        return;
    }
    // Again if another test has had the host drop its caches meanwhile.
    let answers = (0..10).any(|_| {
        // Twice: the first listing has moved the access times.
        mount.sh("for n in 1 2; do diff <(cd $MNT/d; ls -R) <(cd $DATA/d; ls -R); done").good();
        let _stopped = Stopped::new(&mount);
        mount.sh("diff <(cd $MNT/d; timeout 5 ls -R) <(cd $DATA/d; ls -R)").status.success()
    });
    assert!(answers, "each time the daemon was asked");
}

#[test]
fn kept_listings_are_charged_and_follow_each_change() {
    needs_mount!();
    let mount = start();
    mount.sh("mkdir $DATA/d; cd $DATA/d; seq -f %0100g 3000 | xargs touch").good();
    if mount.sh("stat -f -c %T $DATA").good().trim() == "overlayfs" {
        return;
    }
    mount.group("lister", "64m");
    let kept = || mount.value("lister", "memory.stat", "file_kernel");
    until("the listing is charged", || {
        mount.sh_in("lister", "ls -U $MNT/d > /dev/null").good();
        kept() >= 3000 * 128
    });
    assert!(kept() <= 3000 * 128 + 5 * 4096, "{}", kept());
    mount.sh("echo 0 > $CG/lister/memory.force_empty").good();
    until("the kernel has given the listing back", || kept() == 0);
    let check = "diff <(ls $MNT/d) <(ls $DATA/d)";
    let changes = "touch $MNT/d/new; CHECK; mv $MNT/d/new $MNT/d/other; CHECK; mkdir $MNT/d/dir; CHECK; \
                   ln $MNT/d/other $MNT/d/link; CHECK; rm $MNT/d/*1; CHECK; rm -r $MNT/d; ! ls $MNT/d";
    mount.sh_in("lister", &changes.replace("CHECK", check)).good();
}
