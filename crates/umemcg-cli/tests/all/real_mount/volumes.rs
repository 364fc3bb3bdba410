//! Volumes as an operator meets them: `umemcg volume`, `--config`, tmpfs, and many of them.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::harness::{Ended, Mount, Options, needs_mount, until};

fn many(arguments: &[&str]) -> Mount {
    Mount::start_with(&Options { volumes: true, arguments: arguments.to_vec(), ..Options::default() })
}

fn volume(mount: &Mount, arguments: &[&str]) -> Ended {
    let mnt = mount.mnt();
    mount.umemcg(&[&["volume"], arguments, &["--mount", mnt.to_str().unwrap()]].concat())
}

/// Removes a volume whose files are closed, of which the kernel tells when it gets round to it.
fn remove_closed(mount: &Mount, name: &str) -> Ended {
    let remove = || volume(mount, &["remove", name]);
    let mut ended = remove();
    until("the volume is not busy", || {
        let is_busy = ended.status.code() == Some(5);
        if is_busy {
            ended = remove();
        }
        !is_busy
    });
    ended
}

#[test]
fn volumes_are_added_listed_and_removed_on_a_served_mount() {
    needs_mount!();
    let mut mount = many(&[]);
    volume(&mount, &["add", "data", "--dir", mount.data().to_str().unwrap()]).good();
    volume(&mount, &["add", "scratch", "--tmpfs", "--size", "8M"]).good();
    mount.sh("echo one > $MNT/data/f; echo two > $MNT/scratch/f; not 'mkdir $MNT/more'").good();
    let listed = volume(&mount, &["list"]);
    assert!(listed.good().contains("scratch") && listed.stdout.contains("4.0 KiB"), "{listed:?}");
    let json = volume(&mount, &["list", "--json"]);
    let json: serde_json::Value = serde_json::from_str(json.good()).unwrap();
    assert_eq!(json[0]["name"], "data");
    assert_eq!(json[1]["data"]["tmpfs"]["size_bytes"], 8 << 20);
    volume(&mount, &["add", "data", "--tmpfs"]).bad("there is a volume `data` already");
    volume(&mount, &["add", "up", "--dir", mount.outside().to_str().unwrap()])
        .bad("must not contain each other");
    volume(&mount, &["remove", "other"]).bad("there is no volume `other`");
    remove_closed(&mount, "data").good();
    assert_eq!(fs::read(mount.data().join("f")).unwrap(), b"one\n");
    mount.sh("test \"$(ls $MNT)\" = scratch").good();
    mount.umount();
}

#[test]
fn a_volume_in_use_is_removed_by_force_only() {
    needs_mount!();
    let mount = many(&[]);
    volume(&mount, &["add", "v", "--tmpfs"]).good();
    let script = "exec 3> $MNT/v/f; echo a >&3; $UMEMCG volume remove v --mount $MNT && exit 1; test $? = 5; \
                  $UMEMCG volume remove v --mount $MNT --force; not 'echo b >&3'; not 'ls $MNT/v'";
    let ended = mount.sh(script);
    assert!(ended.good().contains("1 open files or directories"), "{ended:?}");
    until("the memory is back", || mount.value("", "memory.stat", "total_shmem") == 0);
}

#[test]
fn data_that_cannot_be_written_keeps_its_volume() {
    needs_mount!();
    let mount = many(&[]);
    let small = mount.data().join("small");
    fs::create_dir(&small).unwrap();
    mount.sh("mount -t tmpfs -o size=1m none $DATA/small").good();
    volume(&mount, &["add", "v", "--dir", small.to_str().unwrap()]).good();
    volume(&mount, &["add", "well", "--dir", mount.data().to_str().unwrap()]).good();
    mount.sh("dd if=/dev/zero of=$MNT/v/big bs=1M count=4; echo x > $MNT/well/f").good();
    let refused = remove_closed(&mount, "v");
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    refused.bad("/v/big: ");
    // It continues as before, and so do the others.
    mount.sh("test $(stat -c %s $MNT/v/big) = 4194304; echo y > $MNT/v/more; ls $MNT/v").good();
    remove_closed(&mount, "well").good();
    let forced = volume(&mount, &["remove", "v", "--force", "--json"]);
    assert_eq!(forced.status.code(), Some(3), "{forced:?}");
    assert!(forced.stdout.contains("No space left"), "{forced:?}");
    mount.sh("test -z \"$(ls $MNT)\"").good();
    until("nothing of it is left", || mount.value("", "memory.stat", "total_dirty") == 0);
    mount.sh("umount -l $DATA/small").good();
}

#[test]
fn a_working_directory_on_a_removed_volume_is_stale() {
    needs_mount!();
    let mount = many(&[]);
    volume(&mount, &["add", "v", "--tmpfs"]).good();
    let script = "mkdir -p $MNT/v/a/b; cd $MNT/v/a/b; $UMEMCG volume remove v --mount $MNT; not 'ls .'; not 'echo x > f'; \
                  $UMEMCG volume add v --tmpfs --mount $MNT; not 'ls .'; test -z \"$(ls $MNT/v)\"; echo x > $MNT/v/f";
    mount.sh(script).good();
}

#[test]
fn a_mapped_page_without_room_is_told_when_it_is_synced() {
    needs_mount!();
    let mount = many(&[]);
    volume(&mount, &["add", "v", "--tmpfs", "--size", "1M"]).good();
    let script = "python3 - $MNT/v/m <<'END'\n\
         import errno, mmap, sys\n\
         f = open(sys.argv[1], 'w+b'); f.truncate(4 << 20)\n\
         m = mmap.mmap(f.fileno(), 4 << 20)\n\
         for at in range(0, 4 << 20, 4096): m[at] = 1\n\
         try:\n    m.flush()\n\
         except OSError as error: sys.exit(error.errno != errno.ENOSPC)\n\
         sys.exit(1)\n\
         END";
    mount.sh(script).good();
}

#[test]
fn a_mapped_page_without_room_beside_others_with_room_is_told() {
    needs_mount!();
    let mount = many(&[]);
    // What is written goes past the cache, and the kernel writes the mapping back in one request.
    mount.group("none", "0");
    mount.sh("mkdir $DATA/small; mount -t tmpfs -o size=1020K none $DATA/small").good();
    volume(&mount, &["add", "v", "--dir", mount.data().join("small").to_str().unwrap()]).good();
    let script = "python3 - $MNT/v/m <<'END'\n\
         import errno, mmap, sys\n\
         f = open(sys.argv[1], 'w+b'); f.truncate(1 << 20)\n\
         m = mmap.mmap(f.fileno(), 1 << 20)\n\
         for at in range(0, 1 << 20, 4096): m[at] = 1\n\
         try:\n    m.flush()\n\
         except OSError as error: sys.exit(error.errno != errno.ENOSPC)\n\
         sys.exit(1)\n\
         END";
    let ended = mount.sh_in("none", script);
    mount.sh("umount -l $DATA/small").good();
    ended.good();
}

#[test]
fn a_mapping_of_a_file_opened_for_appending_is_written_in_place() {
    needs_mount!();
    let mount = many(&[]);
    mount.sh("mkdir $DATA/dir").good();
    volume(&mount, &["add", "v", "--tmpfs"]).good();
    volume(&mount, &["add", "d", "--dir", mount.data().join("dir").to_str().unwrap()]).good();
    let script = "for volume in v d; do python3 - $MNT/$volume/m <<'END'\n\
         import mmap, os, sys\n\
         fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND | os.O_CREAT); os.write(fd, b'x' * 8192)\n\
         m = mmap.mmap(fd, 8192); m[0:4] = b'here'; m.flush(); m.close()\n\
         content = open(sys.argv[1], 'rb').read()\n\
         assert len(content) == 8192 and content.startswith(b'herex'), (len(content), content[:8])\n\
         END\n done";
    mount.sh(script).good();
}

#[test]
fn a_tmpfs_volume_is_full_at_the_writers_limit_or_at_its_size() {
    needs_mount!();
    let mount = many(&[]);
    mount.group("small", "4M");
    volume(&mount, &["add", "v", "--tmpfs", "--size", "16M"]).good();
    let full = "(dd if=/dev/zero of=$MNT/v/NAME bs=64k count=1000 2>&1 || true) | grep 'No space left'";
    mount.sh_in("small", &full.replace("NAME", "mine")).good();
    let held = mount.value("small", "memory.stat", "shmem");
    assert!((3 << 20..=4 << 20).contains(&held), "{held}");
    assert_eq!(mount.value("small", "memory.stat", "unevictable"), held);
    assert!(mount.number("small", "memory.failcnt") > 0);
    // Others still have the rest of the volume, and no more.
    mount.sh(&full.replace("NAME", "others")).good();
    let used = mount.value("", "memory.stat", "total_shmem");
    assert_eq!(used, 16 << 20, "to the page");
    // The memory of a removed file is back when the kernel has forgotten it.
    mount.sh("rm $MNT/v/mine").good();
    until("the file's memory is back", || mount.value("", "memory.stat", "total_shmem") == used - held);
    mount.sh("dd if=/dev/zero of=$MNT/v/again bs=64k count=16; rm $MNT/v/*").good();
    until("all memory is back", || mount.value("", "memory.stat", "total_shmem") == 0);
    // A file that is mapped, and data that arrives through the mapping.
    mount
        .sh("python3 - $MNT/v/m <<'END'\n\
             import mmap, sys\n\
             f = open(sys.argv[1], 'w+b'); f.truncate(1 << 20)\n\
             m = mmap.mmap(f.fileno(), 1 << 20); m[5000:5004] = b'here'; m.flush(); m.close()\n\
             END\n\
             test \"$(dd if=$MNT/v/m bs=1 skip=5000 count=4 2>/dev/null)\" = here")
        .good();
    remove_closed(&mount, "v").good();
    for key in ["total_shmem", "total_unevictable"] {
        until(key, || mount.value("", "memory.stat", key) == 0);
    }
    let slab = || mount.value("", "memory.stat", "slab_unreclaimable");
    until("only the page that holes read as is left", || slab() == 4096);
}

#[test]
fn access_lists_work_on_tmpfs() {
    needs_mount!();
    let mount = many(&[]);
    volume(&mount, &["add", "v", "--tmpfs"]).good();
    let have = mount.sh("command -v setfacl");
    if !have.status.success() {
        crate::harness::cannot_run("needs setfacl");
        return;
    }
    let script = "cd $MNT/v; chmod 755 .; mkdir d; setfacl -m u:1234:rwx,d:u:1234:rx d; touch d/f; \
                  getfacl -c d/f; getfacl -c d; chmod 700 d; getfacl -c d | grep '^mask'; setfacl -b d; stat -c %a d";
    let ended = mount.sh(script);
    let text = ended.good();
    for line in ["user:1234:r-x", "user:1234:rwx", "default:user:1234:r-x", "mask::---", "\n700"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_file_recreates_groups_limits_and_volumes() {
    needs_mount!();
    // The example as it is, with what lies beside it.
    let outside = tempfile::tempdir().unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/.");
    let copied = std::process::Command::new("cp").args(["-r", examples]).arg(outside.path()).status();
    assert!(copied.unwrap().success());
    let config = outside.path().join("umemcg.toml");
    let arguments = ["--config", config.to_str().unwrap()];
    for _ in 0..2 {
        // Once more after it has ended: the same again.
        let mut mount = many(&arguments);
        assert_eq!(mount.number("web", "memory.limit_in_bytes"), 64 << 20);
        assert_eq!(mount.number("web/reports", "memory.max"), 16 << 20);
        mount.sh("test \"$(ls $MNT | xargs)\" = 'data scratch'; echo x >> $MNT/data/f; echo x > $MNT/scratch/f").good();
        mount.umount();
    }
    assert_eq!(fs::read(outside.path().join("data/f")).unwrap(), b"x\nx\n");
    fs::write(&config, "pool = \"64M\"\n\n[volumes.gone]\ndir = \"nowhere\"\n").unwrap();
    let mnt = outside.path().join("data");
    let mount = many(&[]);
    let refused = mount.umemcg(&["mount", "--config", config.to_str().unwrap(), mnt.to_str().unwrap()]);
    refused.bad("umemcg.toml:3: volume `gone`: cannot use the directory");
    assert_eq!(refused.status.code(), Some(1), "it may be there at the next start");
    assert!(!crate::harness::is_mounted(&mnt), "nothing stays mounted");
}

#[test]
fn the_socket_is_its_owners_and_survives_hostile_clients() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let mut mount = many(&["--socket", socket.to_str().unwrap()]);
    let path = socket.to_str().unwrap();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    mount.umemcg(&["volume", "add", "v", "--tmpfs", "--socket", path]).good();
    let connect = || UnixStream::connect(&socket).unwrap();
    // Clients that send nothing, send half a request, or never stop sending.
    let silent: Vec<_> = (0..100).map(|_| connect()).collect();
    let mut crowded = connect();
    let mut answer = String::new();
    let _ = crowded.read_to_string(&mut answer);
    assert_eq!(answer.trim(), "{\"answer\":\"too_many\"}");
    drop(silent);
    until("there is room again", || mount.umemcg(&["volume", "list", "--socket", path]).status.success());
    for text in [
        &b"{\"do\":\"volume_add\",\"name\":\"../x\",\"data\":{\"tmpfs\":{}}}\n"[..],
        b"{\"do\":\"volume_add\",\"name\":\"x\",\"data\":{\"dir\":{\"path\":\"relative\"}}}\n",
        b"{\"do\":\"volume_add\",\"name\":\"x\",\"data\":{\"tmpfs\":{\"size_bytes\":-1}}}\n",
        b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n",
        b"\xff\xfe\0\0\n",
        &[b'['; 60_000],
    ] {
        let mut stream = connect();
        let _ = stream.write_all(text);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"{\"answer\":\"failed\""), "{answer:?}");
    }
    let listed = mount.umemcg(&["volume", "list", "--json", "--socket", path]);
    assert_eq!(listed.good().matches("name").count(), 1);
    mount.assert_alive();
    mount.umount();
    assert!(!socket.exists());
}

/// Adds `nr` volumes over one connection each, half of them directories; returns the daemon's
/// growth in bytes for one.
fn add_many(mount: &Mount, nr: u64) -> u64 {
    let socket = mount.outside().join("s");
    let before = mount.daemon_memory("VmRSS");
    for n in 0..nr {
        let data = if n % 2 == 0 {
            let dir = mount.data().join(format!("{n}"));
            fs::create_dir(&dir).unwrap();
            format!("{{\"dir\":{{\"path\":\"{}\"}}}}", dir.display())
        } else {
            "{\"tmpfs\":{}}".to_owned()
        };
        let mut stream = UnixStream::connect(&socket).unwrap();
        writeln!(stream, "{{\"do\":\"volume_add\",\"name\":\"v{n}\",\"data\":{data}}}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"answer\":\"volumes\""), "{n}: {answer}");
    }
    mount.daemon_memory("VmRSS").saturating_sub(before) / nr
}

/// Returns the number of the daemon's threads.
pub fn nr_threads(mount: &Mount) -> usize {
    fs::read_dir(format!("/proc/{}/task", mount.pid().as_raw_nonzero())).unwrap().count()
}

fn many_volumes(nr: u64) {
    let directory = tempfile::tempdir().unwrap();
    let mut mount = many(&[]);
    mount.umount();
    let socket = mount.outside().join("s");
    mount.start_daemon(&["--pool", "256M", "--socket", socket.to_str().unwrap()]);
    let threads = nr_threads(&mount);
    let bytes = add_many(&mount, nr);
    eprintln!("{nr} volumes, half of them directories: {bytes} bytes resident for each that is idle");
    assert!(bytes < 16 << 10, "{bytes} bytes for an idle volume");
    // Two for each of the few volumes that are watched, and those of the daemon that start late.
    let few = threads + 2 * 4 + 8;
    assert!(nr_threads(&mount) <= few, "{threads} threads before, {} now", nr_threads(&mount));
    assert_eq!(fs::read_dir(mount.mnt()).unwrap().count() as u64, nr);
    // A file on each: no thread stays with them.
    for n in 0..nr {
        fs::write(mount.mnt().join(format!("v{n}/f")), format!("{n}")).unwrap();
    }
    for n in (0..nr).rev() {
        assert_eq!(fs::read_to_string(mount.mnt().join(format!("v{n}/f"))).unwrap(), format!("{n}"));
    }
    until("no flusher is left", || nr_threads(&mount) <= few);
    drop(directory);
    mount.umount();
    for n in (0..nr).step_by(2) {
        assert_eq!(fs::read_to_string(mount.data().join(format!("{n}/f"))).unwrap(), format!("{n}"));
    }
}

#[test]
fn hundreds_of_volumes_are_one_daemons() {
    needs_mount!();
    many_volumes(300);
}

/// `make scale`.
#[test]
#[ignore = "takes a minute"]
fn ten_thousand_volumes_are_one_daemons() {
    needs_mount!();
    many_volumes(10_000);
}
