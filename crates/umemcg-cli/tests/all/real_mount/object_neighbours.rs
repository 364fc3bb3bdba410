//! Two tenants of one volume of objects: one streams ten times the pool, reading or writing, and
//! the other loses nothing. What the daemon has resident is what its formula says. Built only with
//! the feature `object`.

use crate::harness::{SLACK_BYTES, needs_mount};
use crate::real_mount::staged_volume::StagedVolume;

const LIMIT: u64 = 8 << 20;
/// Ten times the pool.
const NR_STREAMS: u32 = 5;
/// Bytes that are left to the bound of resident memory at all times: 28 MB, and 9 MB where the
/// allocator keeps the blocks of an upload that it has freed.
const ROOM_MIN: f64 = (12 << 20) as f64;

/// Runs a script in the group that streams, again and again reads what the other has cached, and
/// looks at the figures. Returns how often.
fn beside(volume: &StagedVolume, script: &str) -> u32 {
    let mount = &volume.mount;
    let figure = |metrics: &str, name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    };
    let [hits, misses] =
        ["total_cache_hit", "total_cache_miss"].map(|key| mount.value("stays", "memory.stat", key));
    let mut stream =
        mount.shell(&format!("echo $$ > $CG/streams/tasks; cd $MNT/o; {script}")).spawn().unwrap();
    let mut nr = 0;
    while stream.try_wait().unwrap().is_none() {
        mount.sh_in("stays", "cat $MNT/o/own > /dev/null").good();
        nr += 1;
        let usage = mount.number("streams", "memory.usage_in_bytes");
        assert!(usage <= LIMIT + SLACK_BYTES, "{usage} bytes charged");
        let metrics = mount.umemcg(&["metrics", mount.mnt().to_str().unwrap()]).good().to_owned();
        let resident = figure(&metrics, "process_resident_memory_bytes");
        let bound = figure(&metrics, "umemcg_resident_memory_bound_bytes");
        assert!(resident + ROOM_MIN <= bound, "{resident} bytes resident, at most {bound} expected");
    }
    assert!(stream.wait().unwrap().success() && nr > 0);
    let [hits, misses] = [("total_cache_hit", hits), ("total_cache_miss", misses)]
        .map(|(key, before)| mount.value("stays", "memory.stat", key) - before);
    eprintln!("{nr} times beside `{script}`: {hits} hits, {misses} misses");
    assert!(misses * 99 <= hits, "{hits} hits, {misses} misses");
    nr
}

#[test]
#[ignore = "needs SeaweedFS and the feature object (make test-object)"]
fn objects_stay_cached_beside_a_tenant_that_streams() {
    needs_mount!();
    let mut volume = StagedVolume::start("32M");
    let large: Vec<u8> = (0..64 << 20).map(|at: u32| (at / 4099) as u8).collect();
    volume.put("large", &large);
    volume.put("own", &large[..2 << 20]);
    let mount = &volume.mount;
    mount.group("streams", "8m");
    mount.group("stays", "8m");
    mount.sh_in("stays", "cat $MNT/o/own > /dev/null").good();
    beside(&volume, &format!("for i in $(seq {NR_STREAMS}); do cat large > /dev/null; done"));
    beside(&volume, &format!("for i in $(seq {NR_STREAMS}); do head -c 64M /dev/zero > written; done"));
    assert!(volume.object("written") == vec![0; 64 << 20]);
    for group in ["streams", "stays"] {
        let most = volume.mount.number(group, "memory.max_usage_in_bytes");
        assert!(most <= LIMIT + SLACK_BYTES, "{group}: {most} bytes charged at most");
        eprintln!("{group}: {most} bytes charged at most");
    }
    volume.mount.assert_alive();
    volume.remove();
    volume.mount.umount();
}
