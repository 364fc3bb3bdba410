//! Parsers of `/proc`: of any bytes, and of files with names, paths and values chosen by a tenant.

use umemcg_fuse::{fuzzing, mountinfo};

use crate::outcome::Outcome;

/// Longest name of a process.
const COMM_BYTES_MAX: usize = 15;

/// Parses the input as each file, and as a part of well-formed ones.
pub fn proc_files(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.note(fuzzing::parse_proc_files(input));
    if let Ok(text) = std::str::from_utf8(input) {
        outcome.note(umemcg_cli::fuzzing::parse_proc_files(text));
    }
    for mount in mountinfo::parse(input) {
        outcome.note((mount.is_fuse(), mount.fuse_owner().is_some(), mount.point.is_absolute()));
    }
    names_forge_nothing(input);
    outcome
}

/// Asserts that the names of processes, cgroups and mount points change nothing else.
fn names_forge_nothing(input: &[u8]) {
    let comm = &input[..input.len().min(COMM_BYTES_MAX)];
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        &byte => vec![byte],
    };
    let escaped: Vec<u8> = input.iter().flat_map(escape).collect();
    let ids = fuzzing::ids_in_status(&[b"Name:\t", &*escaped, b"\nTgid:\t71\nPPid:\t5\n"].concat());
    assert_eq!(ids, Some((71, 5)), "a process called {comm:?}");
    for (pending, is_dying) in [("0", false), ("100", true)] {
        let masks = format!("\nSigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n");
        let status = [b"Name:\t", &*escaped, masks.as_bytes()].concat();
        assert_eq!(fuzzing::is_dying_in_status(&status), is_dying, "a process called {comm:?}");
    }

    let line = [b"36 35 0:45 / /", &*escaped, b" rw shared:1 - fuse.umemcg /data rw,user_id=7\n"].concat();
    let mounts: Vec<_> = mountinfo::parse(&line).collect();
    assert_eq!(mounts.len(), 1, "a mount at {input:?}");
    assert_eq!(mounts[0].point.as_os_str().as_encoded_bytes(), [b"/", input].concat());
    assert_eq!((mounts[0].id, mounts[0].fuse_owner()), (36, Some(7)));

    let path: Vec<u8> = input.iter().copied().filter(|&byte| byte != b'\n').collect();
    let line = [b"4:cpu,memory:/", &*path, b"\n0::/other\n"].concat();
    let paths = fuzzing::cgroup_paths(&line);
    assert_eq!(paths, [b"/other".to_vec(), [b"/", &*path].concat()]);
}
