//! A daemon that is refused threads, descriptors or memory: before it mounts, while it serves,
//! during a reload, when a volume is added, and at its end. It names the shortage, serves requests
//! as far as possible, loses no data, and leaves no dead mount.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use tempfile::TempDir;

use crate::harness::{Ended, Mount, Options, cannot_run, is_mounted, needs_mount};
use crate::real_mount::ending::until_sockets_accept;
use crate::real_mount::kernel_group::KernelGroup;

/// Also the parts of a mount that it has only as a service.
const ARGUMENTS: [&str; 4] = ["--pool", "64M", "--metrics", "127.0.0.1:0"];
const AS_A_SERVICE: &str = "export WATCHDOG_USEC=60000000";
/// More than a daemon needs to serve.
const LIMIT_MAX: u64 = 200;
const NO_THREADS: &str = "no kernel cgroup for threads can be made";

/// Panics unless a command has failed with this code and said why in one sentence.
#[track_caller]
fn refused_with(code: i32, ended: &Ended) {
    let nr_said = ended.stderr.lines().filter(|line| line.starts_with("umemcg: ")).count();
    let is_panic = ended.stderr.contains("panicked");
    assert!(ended.status.code() == Some(code) && nr_said == 1 && !is_panic, "{ended:?}");
}

#[track_caller]
fn is_gone(mount: &Mount) {
    assert!(!is_mounted(&mount.mnt()) && !is_mounted(&mount.cg()));
}

/// Ends a mount by a signal.
#[track_caller]
fn end(mount: &mut Mount) {
    mount.signal(Signal::TERM);
    let ended = mount.wait();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    is_gone(mount);
}

/// Starts daemons under one limit after another, from the least on, until one serves. `under`
/// returns the command that sets the limit for the process of a shell.
fn serve_under_the_least(mount: &mut Mount, first: u64, under: impl Fn(u64) -> String) {
    for limit in first..LIMIT_MAX {
        match mount.try_daemon(&format!("{} && {AS_A_SERVICE}", under(limit)), &ARGUMENTS) {
            Some(ended) => {
                refused_with(1, &ended);
                is_gone(mount);
            }
            None => return eprintln!("a daemon serves with {limit}"),
        }
    }
    panic!("no daemon serves with less than {LIMIT_MAX}");
}

#[test]
fn a_mount_has_the_threads_that_it_needs_or_says_why_not() {
    needs_mount!();
    let Some(group) = KernelGroup::of_threads("start") else { return cannot_run(NO_THREADS) };
    let mut mount = Mount::start();
    mount.umount();
    serve_under_the_least(&mut mount, 1, |limit| {
        group.limit(limit);
        group.enter()
    });
    // It gets no further thread for its requests either.
    mount.sh("head -c 2M /dev/urandom | tee $MNT/f > $MNT/../f; mkdir $MNT/d; mv $MNT/f $MNT/d").good();
    mount.sh("cmp $MNT/d/f $MNT/../f; echo x > $MNT/x; sync $MNT/x").good();
    end(&mut mount);
    mount.sh("cmp $DATA/d/f $DATA/../f; [ $(cat $DATA/x) = x ]").good();
}

#[test]
fn a_mount_has_the_descriptors_it_needs_or_says_why_not() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.umount();
    // With three the program itself cannot be loaded.
    serve_under_the_least(&mut mount, 4, |limit| format!("ulimit -n {limit}"));
    let made = mount.sh("echo x > $MNT/f");
    assert!(made.status.success() || made.stderr.contains("Too many open files"), "{made:?}");
    end(&mut mount);
    let stored = fs::read(mount.data().join("f")).unwrap_or_default();
    assert_eq!(stored, if made.status.success() { &b"x\n"[..] } else { b"" });
}

/// A mount with a configuration that may be read again, and its directory; volumes `two` and
/// `three` may be added to volume `one`.
fn configured() -> (TempDir, Mount) {
    let place = tempfile::tempdir().unwrap();
    for name in ["one", "two", "three"] {
        fs::create_dir(place.path().join(name)).unwrap();
    }
    configure(&place, &["one"]);
    let config = place.path().join("umemcg.toml");
    let arguments = vec!["--config", config.to_str().unwrap()];
    let mount = Mount::start_with(&Options { volumes: true, arguments, ..Options::default() });
    (place, mount)
}

fn configure(place: &TempDir, volumes: &[&str]) {
    let text: String = volumes.iter().map(|name| format!("[volumes.{name}]\ndir = \"{name}\"\n")).collect();
    fs::write(place.path().join("umemcg.toml"), text).unwrap();
}

fn add_three(place: &TempDir, mount: &Mount) -> Ended {
    let (three, mnt) = (place.path().join("three"), mount.mnt());
    let add = ["volume", "add", "three", "--dir", three.to_str().unwrap(), "--mount", mnt.to_str().unwrap()];
    mount.umemcg(&add)
}

/// Each kind of operation in volume `one`.
const WORK: &str = "cd $MNT/one; rm -rf d; mkdir d; head -c 2M /dev/urandom | tee d/f > $MNT/../f; cmp d/f $MNT/../f
    echo x > d/x; sync d/x; mv d/x d/y; ln d/y d/z; [ $(cat d/z) = x ]; rm d/y; [ \"$(ls d | xargs)\" = 'f z' ]";

#[test]
fn without_threads_files_are_served_and_the_socket_refuses() {
    needs_mount!();
    let Some(group) = KernelGroup::of_threads("serve") else { return cannot_run(NO_THREADS) };
    let (place, mut mount) = configured();
    let mnt = mount.mnt().to_str().unwrap().to_owned();
    let reload = |mount: &Mount| mount.umemcg(&["reload", "--mount", &mnt]);
    group.add(mount.pid());
    group.limit(1);
    mount.sh(WORK).good();
    configure(&place, &["one", "two"]);
    for refused in [reload(&mount), add_three(&place, &mount), mount.umemcg(&["sync", &mnt])] {
        refused.bad("try again");
        refused_with(1, &refused);
    }
    // A thread for the request, and none or some for its work.
    for more in 1..4 {
        group.limit(group.usage() + more);
        let ended = reload(&mount);
        assert!(matches!(ended.status.code(), Some(0 | 1)), "{more}: {ended:?}");
    }
    group.limit(LIMIT_MAX);
    reload(&mount).good();
    add_three(&place, &mount).good();
    mount.sh("for v in two three; do echo x > $MNT/$v/f; done; $UMEMCG sync $MNT").good();
    mount.sh(WORK).good();
    group.limit(1);
    mount.sh("echo y > $MNT/two/f").good();
    end(&mut mount);
    let stored = |name: &str| fs::read(place.path().join(name)).unwrap();
    assert_eq!((stored("two/f").as_slice(), stored("three/f").as_slice()), (&b"y\n"[..], &b"x\n"[..]));
    assert!(stored("one/d/f") == fs::read(mount.outside().join("f")).unwrap());
}

#[test]
fn without_descriptors_open_files_work_and_the_mount_ends() {
    needs_mount!();
    let (place, mut mount) = configured();
    let (one, mnt, cg) = (mount.mnt().join("one"), mount.mnt(), mount.cg());
    fs::write(place.path().join("one/there"), "there").unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(one.join("open")).unwrap();
    let mut text = [0; 12];
    file.write_all_at(b"before", 0).unwrap();
    file.read_exact_at(&mut text[..6], 0).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let process = mount.pid();
    let limit =
        |current| prlimit(Some(process), Resource::Nofile, Rlimit { current, maximum }).unwrap().current;
    until_sockets_accept(&mount);

    // No number is left for another descriptor.
    let usual = limit(Some(3));
    file.write_all_at(b"after.", 6).unwrap();
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"beforeafter.");
    let open = || File::open(one.join("there")).map(drop);
    let create = || File::create(one.join("new")).map(drop);
    for refused in [open(), create()] {
        let errnos = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        assert!(errnos.contains(&refused.as_ref().unwrap_err().raw_os_error()), "{refused:?}");
    }
    // One request on each socket: there is no descriptor for another one.
    let added = add_three(&place, &mount);
    added.bad("Too many open files");
    refused_with(1, &added);
    configure(&place, &["one", "two"]);
    let reloaded = mount.umemcg(&["reload", "--mount", cg.to_str().unwrap()]);
    reloaded.bad("Too many open files");
    refused_with(1, &reloaded);

    limit(usual);
    let made: io::Result<()> = open().and_then(|()| create());
    made.unwrap();
    mount.umemcg(&["reload", "--mount", mnt.to_str().unwrap()]).good();
    add_three(&place, &mount).good();
    mount.sh("for v in two three; do echo x > $MNT/$v/f; done").good();
    drop(file);
    limit(Some(3));
    end(&mut mount);
    let stored = |name: &str| fs::read(place.path().join(name)).unwrap();
    assert_eq!((stored("one/open"), stored("two/f")), (b"beforeafter.".to_vec(), b"x\n".to_vec()));
}

/// `docs/operating.md`, *Memory of the daemon*, names a limit that always suffices.
#[test]
fn a_daemon_lives_within_the_memory_that_its_page_names() {
    needs_mount!();
    let Some(group) = KernelGroup::of_memory("daemon") else {
        return eprintln!("no kernel cgroup for memory can be made here");
    };
    const POOL: u64 = 64 << 20;
    group.limit(POOL * 6 / 5 + (64 << 20));
    let mut mount = Mount::start();
    mount.umount();
    let refused = mount.try_daemon(&group.enter(), &["--pool", "256M"]);
    refused_with(2, &refused.expect("a pool beyond the limit"));
    is_gone(&mount);
    let refused = mount.try_daemon(&group.enter(), &["--pool", "64M", "--page-cache", "own"]);
    assert!(refused.is_none(), "{refused:?}");
    mount.sh("head -c 160M /dev/urandom | tee $MNT/f > $MNT/../f; cmp $MNT/f $MNT/../f").good();
    mount
        .sh("mkdir $MNT/d; cd $MNT/d; seq 4000 | xargs touch; [ $(find . -type f -links 1 | wc -l) = 4000 ]")
        .good();
    mount.assert_alive();
    end(&mut mount);
    mount.sh("cmp $DATA/f $DATA/../f; [ $(ls $DATA/d | wc -l) = 4000 ]").good();
}
