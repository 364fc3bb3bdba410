//! Changes by programs that are killed while the store hangs: the program ends at once, the change
//! is made when the store goes on, and the mount shows it.

use std::process::Command;
use std::thread;

use crate::harness::{Mount, Options, needs_mount, patiently, until, waits_in};
use crate::real_mount::outside_changes::FreezableStore;

/// Each in a directory of its own, with a test that it has been made.
const CHANGES: [(&str, &str); 9] = [
    ("mkdir mkdir/new", "-d mkdir/new"),
    ("touch create/new", "-e create/new"),
    ("ln -s somewhere symlink/new", "-L symlink/new"),
    ("ln link/f link/new", "-e link/new"),
    ("chmod 600 chmod/f", "$(stat -c %a chmod/f) = 600"),
    ("truncate -s 3 truncate/f", "$(stat -c %s truncate/f) = 3"),
    ("rm unlink/f", "! -e unlink/f"),
    ("rmdir rmdir/d", "! -e rmdir/d"),
    ("mv rename/f rename/g", "! -e rename/f"),
];
/// Everything that is there before or after.
const NAMES: &str = "mkdir mkdir/new create/new symlink/new link/f link/new chmod/f truncate/f unlink/f unlink/g \
                     rmdir rmdir/d rename/f rename/g rename/h";

#[test]
fn what_a_killed_program_has_changed_is_seen() {
    needs_mount!();
    let modes: [&[&str]; 3] =
        [&["--page-cache", "own"], &["--page-cache", "kernel"], &["--page-cache", "kernel", "--exclusive"]];
    // All end before one's failure does.
    thread::scope(|scope| modes.map(|mode| drop(scope.spawn(move || kill_changing_programs(mode)))));
}

fn kill_changing_programs(mode: &[&'static str]) {
    let Some(store) = FreezableStore::new() else { return };
    let (arguments, data) = (mode.to_vec(), Some(store.path()));
    let mut mount = Mount::start_with(&Options { arguments, data, ..Options::default() });
    let script = "cd $MNT; mkdir mkdir create symlink link chmod truncate unlink rmdir rmdir/d rename; \
                  echo data | tee link/f chmod/f truncate/f unlink/f rename/f rename/g; \
                  ln unlink/f unlink/g; ln rename/g rename/h; $UMEMCG sync $MNT";
    mount.sh(script).good();
    // Names, kinds, numbers of links, modes and lengths.
    let look = |at: &str| {
        let looked = mount.sh(&format!("cd {at}; stat -c '%n %F %h %a %s' {NAMES} 2>&1 || true"));
        looked.good().to_owned()
    };
    assert_eq!(look("$MNT"), look("$DATA"));
    for (change, test) in CHANGES {
        let before = look("$MNT");
        let frozen = store.freeze();
        let mut words = change.split(' ');
        let mut program = Command::new(words.next().unwrap());
        let mut program = program.args(words).current_dir(mount.mnt()).spawn().unwrap();
        let daemon = mount.pid().as_raw_nonzero().get().cast_unsigned();
        until("the daemon waits for the store", || {
            waits_in(program.id(), "request_wait_answer") && waits_in(daemon, "percpu_rwsem_wait")
        });
        program.kill().unwrap();
        patiently(Some(mount.pid()), &mut program);
        // The kernel asks for what it does not know any more.
        assert_eq!(look("$MNT"), before);
        drop(frozen);
        until(&format!("{change} is made"), || mount.sh(&format!("cd $DATA; test {test}")).status.success());
        until(&format!("{change} is seen"), || look("$MNT") == look("$DATA"));
        let list = |at: &str| mount.sh(&format!("ls -R {at}/mkdir {at}/*/ | grep -v :")).good().to_owned();
        until("the listings are right", || list("$MNT") == list("$DATA"));
    }
    mount.umount();
}
