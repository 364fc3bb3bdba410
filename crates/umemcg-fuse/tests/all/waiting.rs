//! The memory of waiting requests, in this process and in their group. The only test of its
//! program: it measures resident memory.

use std::ffi::OsStr;
use std::io::Write;

use crate::common::{Memory, TIMEOUT, TestMount, can_mount, within};
use umemcg::{Engine, EngineConfig};
use umemcg_fuse::wait_charge::{KEPT_BYTES_MIN, LENT_BYTES_MAX, REQUEST_BYTES};

const NR_WRITERS: usize = 300;
const MIB: u64 = 1 << 20;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn writers_that_wait_are_bounded_and_given_back() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 * MIB)).unwrap();
    let group = engine.create_group(engine.root(), OsStr::new("writers")).unwrap();
    group.store_max(8 * MIB);
    // A file for each: the kernel lets one write at a time extend a file.
    let names: Vec<String> = (0..NR_WRITERS).map(|n| format!("hang{n}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let memory = Memory::with(&files);
    memory.payer.set(group.clone()).unwrap();
    let mount = TestMount::new(memory.clone());
    let data: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
    std::thread::scope(|scope| {
        let before = resident();
        for name in &names {
            let file = std::fs::OpenOptions::new().write(true).open(mount.path(name)).unwrap();
            let data = &data;
            scope.spawn(move || {
                let mut file = file;
                file.write_all(data).unwrap();
            });
        }
        let pool_counts = || mount.session.pool_counts();
        let all_wait = within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == NR_WRITERS);
        let (usage, taken, pool_counts) =
            (group.usage_bytes(), resident().saturating_sub(before), pool_counts());
        memory.gate.open();
        assert!(all_wait.is_some(), "{pool_counts:?}");
        let least = (pool_counts.nr_waiting as u64) * REQUEST_BYTES;
        let most = 9 * MIB + (pool_counts.nr_waiting as u64) * (REQUEST_BYTES + KEPT_BYTES_MIN as u64 + 4096);
        assert!((least..=most).contains(&usage), "{usage} bytes are charged; {pool_counts:?}");
        // Those that run have a buffer each; threads, theirs and ours, take a few pages.
        let most = most + LENT_BYTES_MAX / 2 + 24 * MIB + NR_WRITERS as u64 * (64 << 10);
        assert!(taken <= most, "{taken} bytes more are resident, {most} at most; {pool_counts:?}");
    });
    // Short writes came again until all was written.
    assert!(memory.files.lock().unwrap().values().all(|(_, bytes)| *bytes == data));
    assert!(within(TIMEOUT, || group.usage_bytes() <= MIB).is_some(), "{}", group.usage_bytes());
    // A reply comes before its thread has ended the request.
    let pool_counts = || mount.session.pool_counts();
    let is_idle = within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == 0);
    assert!(is_idle.is_some(), "{:?}", pool_counts());
}
