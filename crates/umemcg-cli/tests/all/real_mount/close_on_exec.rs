//! Programs that start others while they have a file open for writing that is closed when another
//! program begins, as most languages open files. The kernel holds a lock of the process while it
//! closes them and waits for the daemon.

use crate::harness::{Mount, Options, needs_mount};

/// Starts children in each way that there is, with a fresh file open each time; each goes on to
/// write afterwards. At the end it becomes another program itself.
const STARTS_CHILDREN: &str = r#"
import os, subprocess, sys
ways = [
    lambda: os.system('true'),
    lambda: subprocess.call(['true'], close_fds=False),
    lambda: subprocess.call(['true']),
    lambda: os.spawnvp(os.P_WAIT, 'true', ['true']),
    lambda: os.waitpid(os.posix_spawnp('true', ['true'], os.environ), 0)[1],
]
directory = sys.argv[1]
os.mkdir(directory)
def fresh(name):
    opened = os.open(f'{directory}/{name}', os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(opened, b'x' * 5000)
    return opened
for nr, way in enumerate(ways):
    opened = fresh(nr)
    assert way() == 0, nr
    os.write(opened, b'y')
    os.close(opened)
    assert os.stat(f'{directory}/{nr}').st_size == 5001, nr
fresh('last')
os.execvp('perl', ['perl', '-e', '''
    open(F, ">", "$ARGV[0]/perl") or die; print F "x"; system("true") == 0 or die; close(F) or die;
''', directory])
"#;

/// Runs two of them at a time in a volume, and others in groups of their own beside them.
fn start_children(mount: &Mount, volume: &str) {
    let program = mount.outside().join("children.py");
    std::fs::write(&program, STARTS_CHILDREN).unwrap();
    let program = program.display();
    for group in ["one", "two"] {
        mount.sh(&format!("mkdir -p $CG/{group}")).good();
    }
    mount
        .sh(&format!(
            "cd $MNT/{volume}
             for name in one two; do
                 (echo $BASHPID > $CG/$name/tasks; exec python3 {program} $name) &
                 pids+=($!)
             done
             wait ${{pids[0]}}
             wait ${{pids[1]}}
             [ $(ls one | wc -l) = 7 ] && [ $(stat -c %s one/4 two/last two/perl | tr '\\n' -) = 5001-5000-1- ]
             rm -r one two"
        ))
        .good();
}

#[test]
fn children_start_beside_files_that_close_on_exec() {
    needs_mount!();
    let mut mount = Mount::start();
    start_children(&mount, ".");
    mount.umount();
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let mnt = mount.mnt().to_str().unwrap().to_owned();
    mount.umemcg(&["volume", "add", "t", "--tmpfs", "--size", "4M", "--mount", &mnt]).good();
    start_children(&mount, "t");
    mount.umount();
}

#[cfg(feature = "object")]
#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn children_start_beside_objects_that_close_on_exec() {
    use crate::real_mount::objects::Moto;
    needs_mount!();
    let moto = Moto::start();
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let (mnt, staging) = (mount.mnt(), tempfile::tempdir().unwrap());
    let (mnt, staging) = (mnt.to_str().unwrap(), staging.path().to_str().unwrap());
    let store = ["--endpoint", &moto.endpoint, "--region", "us-east-1"];
    for (name, writes) in [("staged", &["--staging", staging][..]), ("streamed", &["--writes", "streamed"])] {
        let url = format!("s3://bucket/{name}");
        let add = ["volume", "add", name, "--mount", mnt, "--store", &url];
        mount.umemcg(&[&add, &store[..], writes].concat()).good();
        start_children(&mount, name);
    }
    mount.assert_alive();
    mount.umount();
}
