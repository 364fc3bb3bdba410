//! The checks of `umemcg doctor`: from facts to findings with advice.

use std::time::Duration;

use umemcg_fuse::Tracking;

use super::facts::{Facts, StagingFacts, StoreTimes};
use super::finding::{Finding, Severity};
use crate::table::human_bytes;

/// The first Linux with FUSE protocol 7.31, the oldest supported here.
const KERNEL_MIN: (u32, u32) = (5, 4);
/// The first Linux with pidfds of threads, to notice the end of any thread.
const KERNEL_PIDFD_THREAD: (u32, u32) = (6, 9);
/// The first Linux with uncached buffered I/O.
const KERNEL_DONTCACHE: (u32, u32) = (6, 14);
/// Descriptors sufficient for a daemon with many clients.
const DESCRIPTORS_WELL: u64 = 65_536;
/// Descriptors needed by the daemon beside the descriptors of its volumes.
const DESCRIPTORS_BESIDE: u64 = 256;
/// The most directories watched by a daemon for other programs' changes.
const WATCHES_USED: u64 = 4;
/// Memory needed by the daemon beside its pool, with the pool full of metadata: see
/// docs/operating.md.
const BESIDE_BYTES: u64 = 64 << 20;
/// Memory for the pool and its overhead, in tenths of the pool.
const POOL_TENTHS: u64 = 12;
/// The response time to a small request above which a store counts as slow. A bucket in the same
/// region answers within a tenth of it.
const STORE_SLOW: Duration = Duration::from_millis(200);
/// The reciprocal of the share of a staging directory that should be free.
const STAGING_PART: u64 = 10;

fn ok(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding { check, severity: Severity::Ok, finding: finding.into(), advice: None }
}

fn warn(check: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, severity: Severity::Warn, finding: finding.into(), advice: Some(advice.into()) }
}

fn fail(check: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, severity: Severity::Fail, finding: finding.into(), advice: Some(advice.into()) }
}

/// Returns the findings from the facts. Their order is the order for acting on them.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![
        kernel(&facts.kernel),
        fuse_device(facts),
        mount_helper(facts),
        other_users(facts),
        processes(facts),
        descriptors(facts),
        watches(facts),
        memory(facts),
        huge_pages(facts.huge_pages.as_deref()),
    ];
    findings.extend(facts.config.as_ref().map(|config| match config {
        Ok(()) => ok("configuration", "it is valid"),
        Err(error) => fail("configuration", error, "mend the line; a reload would change nothing"),
    }));
    findings.extend(facts.directories.iter().map(|(volume, listed)| match listed {
        Ok(()) => ok("directory", format!("volume `{volume}`: it can be read")),
        Err(error) => fail("directory", format!("volume `{volume}`: {error}"), "create it, or change `dir`"),
    }));
    findings.extend(facts.stores.iter().map(|(volume, answer)| store(volume, answer.as_ref())));
    findings.extend(facts.stagings.iter().map(staging));
    findings
}

/// Returns the first two numbers of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    match version_of(release) {
        None => warn(CHECK, format!("Linux `{release}`: its version is not known"), "try a mount"),
        Some(version) if version < KERNEL_MIN => fail(
            CHECK,
            format!("Linux {release} speaks an older FUSE protocol than 7.31"),
            "use Linux 5.4 or newer; 6.14 or newer is best",
        ),
        Some(version) if version < KERNEL_PIDFD_THREAD => warn(
            CHECK,
            format!("Linux {release}: the end of a thread may be noticed a second late"),
            "Linux 6.9 or newer reports it at once; 6.14 or newer is best",
        ),
        Some(version) if version < KERNEL_DONTCACHE => warn(
            CHECK,
            format!(
                "Linux {release} has no uncached buffered I/O, so direct I/O or advice keeps the host's cache small"
            ),
            "use Linux 6.14 or newer where the host's page cache matters",
        ),
        Some(_) => ok(CHECK, format!("Linux {release} has all that is used")),
    }
}

fn fuse_device(facts: &Facts) -> Finding {
    match &facts.fuse_device {
        Ok(()) => ok("fuse device", "/dev/fuse can be opened"),
        Err(error) => fail(
            "fuse device",
            format!("/dev/fuse cannot be opened: {error}; nothing can be mounted"),
            "load the module (`modprobe fuse`); give a container the device (`--device /dev/fuse`), a service \
             `DeviceAllow=/dev/fuse rw`",
        ),
    }
}

fn mount_helper(facts: &Facts) -> Finding {
    const CHECK: &str = "mount helper";
    match (&facts.mount_helper, facts.is_root) {
        (Some(program), false) => ok(CHECK, format!("{} mounts for this user", program.display())),
        (None, false) => {
            fail(CHECK, "only root can mount here: there is no fusermount3", "install the package fuse3")
        }
        (_, true) => ok(CHECK, "root needs none"),
    }
}

fn other_users(facts: &Facts) -> Finding {
    const CHECK: &str = "other users";
    match (facts.is_root, facts.wants_others, facts.may_mount_for_others) {
        (true, _, _) => ok(CHECK, "they may use what root mounts"),
        (false, true, true) => ok(CHECK, "they may use the mount"),
        (false, false, _) => ok(CHECK, "only the user that mounts uses the mount (no --allow-other)"),
        (false, true, false) => fail(
            CHECK,
            "--allow-other is refused to ordinary users here",
            "add the line `user_allow_other` to /etc/fuse.conf, or mount as root",
        ),
    }
}

fn processes(facts: &Facts) -> Finding {
    const CHECK: &str = "processes";
    match &facts.tracking {
        Ok(Tracking::Hierarchy) => ok(CHECK, "the kernel tells which processes belong to a group"),
        Ok(Tracking::Ancestry) => warn(
            CHECK,
            "processes are followed by parents and sessions: one that leaves both before it first uses the mount \
             is charged by rule, or to the root",
            "mount as root outside of a container, with a kernel that has cgroup version 1 hierarchies; rules \
             (`cgroup:…`) need none of that",
        ),
        Err(error) => fail(
            CHECK,
            format!("processes cannot be followed: {error}"),
            "raise the limits of \
             descriptors and threads",
        ),
    }
}

fn descriptors(facts: &Facts) -> Finding {
    const CHECK: &str = "descriptors";
    let needed = facts.directories.len() as u64 + DESCRIPTORS_BESIDE;
    let advice = "raise the hard limit (`LimitNOFILE=` of the service, `ulimit -Hn`)";
    match facts.descriptors_max {
        Some(max) if max < needed => {
            fail(CHECK, format!("at most {max} are allowed, the volumes alone need {needed}"), advice)
        }
        Some(max) if max < DESCRIPTORS_WELL => warn(
            CHECK,
            format!("at most {max} are allowed: few files can be open, few threads watched"),
            advice,
        ),
        Some(max) => ok(CHECK, format!("up to {max}")),
        None => ok(CHECK, "without a limit"),
    }
}

fn watches(facts: &Facts) -> Finding {
    const CHECK: &str = "watches";
    let wanted = (facts.directories.len() as u64).clamp(1, WATCHES_USED);
    match facts.watches_max {
        _ if !facts.is_root => {
            ok(CHECK, "only root can watch for other programs' changes: the kernel asks again each second")
        }
        None => ok(CHECK, "the kernel has none for other programs' changes, so it asks again each second"),
        Some(max) if max < wanted => warn(
            CHECK,
            format!(
                "at most {max} are allowed, and {wanted} are wanted: without one the kernel asks again each second"
            ),
            "sysctl fs.fanotify.max_user_groups=128",
        ),
        Some(max) => ok(CHECK, format!("up to {max} are allowed")),
    }
}

fn memory(facts: &Facts) -> Finding {
    const CHECK: &str = "memory";
    let usable = match &facts.usable {
        Ok(usable) => usable,
        Err(error) => {
            return fail(CHECK, format!("it cannot be determined: {error}"), "mount /proc");
        }
    };
    let pool_bytes = match facts.pool.to_bytes(usable) {
        Ok(bytes) => bytes,
        Err(refusal) => {
            return fail(CHECK, refusal, "lower `pool`, or raise the limit of the daemon's cgroup");
        }
    };
    let enough_bytes = (pool_bytes / 10 * POOL_TENTHS).saturating_add(BESIDE_BYTES);
    let (pool, may, enough) =
        (human_bytes(pool_bytes), human_bytes(usable.bytes()), human_bytes(enough_bytes));
    match usable.limit() {
        Some(file) if usable.bytes() < enough_bytes => warn(
            CHECK,
            format!(
                "a pool of {pool} may need {enough} with all that goes with it, and {} allows {may}: the kernel \
                 may kill the daemon for what its tenants hold",
                file.display()
            ),
            format!("raise that limit to {enough} (`MemoryMax=` of the service), or lower `pool`"),
        ),
        None if usable.bytes() < enough_bytes => warn(
            CHECK,
            format!(
                "a pool of {pool} may need {enough} with all that goes with it, and this machine has {may}"
            ),
            "lower `pool`",
        ),
        _ => ok(CHECK, format!("a pool of {pool} fits; the daemon may use {may}")),
    }
}

fn huge_pages(modes: Option<&str>) -> Finding {
    const CHECK: &str = "huge pages";
    match modes {
        Some(modes) if modes.contains("[never]") => warn(
            CHECK,
            "transparent huge pages are off: copies from the pool take about twice as long",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(_) => ok(CHECK, "the pool gets them"),
        None => warn(
            CHECK,
            "this kernel has none: copies from the pool take about twice as long",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

fn store(volume: &str, answer: Result<&StoreTimes, &String>) -> Finding {
    const CHECK: &str = "store";
    match answer {
        Err(error) => fail(
            CHECK,
            format!("volume `{volume}`: {error}"),
            "check the URL, `endpoint`, the network, and the credentials in the daemon's environment",
        ),
        Ok(StoreTimes { first, further }) => {
            let ms = |time: &Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
            let found = format!(
                "volume `{volume}`: it answers in {}; the first request took {}",
                ms(further),
                ms(first)
            );
            if *further < STORE_SLOW {
                return ok(CHECK, found);
            }
            warn(
                CHECK,
                format!("{found}: each miss, and each open that asks again, waits as long"),
                "use a bucket in the daemon's region, and look for a proxy or a slow name server between them; \
                 else `freshness = \"ttl=5s\"` asks less often, and a larger pool misses less",
            )
        }
    }
}

fn staging(facts: &StagingFacts) -> Finding {
    const CHECK: &str = "staging";
    let StagingFacts { volume, dir, max_bytes, free_bytes } = facts;
    let dir = dir.display();
    match free_bytes {
        Err(error) => fail(
            CHECK,
            format!("volume `{volume}`: {dir} cannot be written: {error}"),
            "create it for the user of the daemon",
        ),
        Ok(free) if *free < max_bytes / STAGING_PART => fail(
            CHECK,
            format!(
                "volume `{volume}`: {dir} has {} free of the {} that may be staged: writes will fail",
                human_bytes(*free),
                human_bytes(*max_bytes)
            ),
            "make room, or lower `staging_size`",
        ),
        Ok(free) if free < max_bytes => warn(
            CHECK,
            format!(
                "volume `{volume}`: {dir} has {} free, and {} may be staged",
                human_bytes(*free),
                human_bytes(*max_bytes)
            ),
            "make room, or lower `staging_size`",
        ),
        Ok(free) => ok(CHECK, format!("volume `{volume}`: {} free in {dir}", human_bytes(*free))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{PoolSize, Usable};

    const GIB: u64 = 1 << 30;

    fn well() -> Facts {
        Facts {
            kernel: "6.18.5-amd64".into(),
            fuse_device: Ok(()),
            is_root: true,
            mount_helper: Some("/usr/bin/fusermount3".into()),
            wants_others: false,
            may_mount_for_others: false,
            descriptors_max: Some(1 << 20),
            watches_max: Some(128),
            tracking: Ok(Tracking::Hierarchy),
            pool: PoolSize::Bytes(GIB),
            usable: Ok(Usable::new(8 * GIB, None)),
            huge_pages: Some("always [madvise] never".into()),
            config: Some(Ok(())),
            directories: vec![("a".into(), Ok(()))],
            stores: vec![("s".into(), Ok(answered_in(20)))],
            stagings: vec![staged(Ok(20 * GIB))],
        }
    }

    fn answered_in(ms: u64) -> StoreTimes {
        StoreTimes { first: Duration::from_secs(1), further: Duration::from_millis(ms) }
    }

    fn staged(free_bytes: Result<u64, String>) -> StagingFacts {
        let (volume, dir) = ("s".into(), "/staging".into());
        StagingFacts { volume, dir, max_bytes: 16 * GIB, free_bytes }
    }

    fn limited(bytes: u64) -> Result<Usable, String> {
        Ok(Usable::new(bytes, Some("/sys/fs/cgroup/job/memory.max".into())))
    }

    /// A change of the facts to a broken machine.
    type Spoil = fn(&mut Facts);

    #[test]
    fn a_machine_that_is_well_gets_no_advice() {
        for finding in findings(&well()) {
            assert_eq!((finding.severity, &finding.advice), (Severity::Ok, &None), "{finding:?}");
        }
    }

    #[test]
    fn each_bad_machine_is_told_its_one_trouble() {
        use Severity::{Fail, Warn};
        let cases: [(Spoil, Severity, &str, &str); 24] = [
            (|facts| facts.kernel = "4.19.0".into(), Fail, "kernel", "5.4"),
            (|facts| facts.kernel = "6.1.0-18".into(), Warn, "kernel", "6.9"),
            (|facts| facts.kernel = "6.12.0".into(), Warn, "kernel", "6.14"),
            (|facts| facts.kernel = "mystery".into(), Warn, "kernel", "try a mount"),
            (|facts| facts.fuse_device = Err("no".into()), Fail, "fuse device", "modprobe fuse"),
            (|facts| (facts.is_root, facts.mount_helper) = (false, None), Fail, "mount helper", "fuse3"),
            (
                |facts| (facts.is_root, facts.wants_others) = (false, true),
                Fail,
                "other users",
                "user_allow_other",
            ),
            (|facts| facts.tracking = Ok(Tracking::Ancestry), Warn, "processes", "root"),
            (|facts| facts.tracking = Err("no".into()), Fail, "processes", "descriptors"),
            (|facts| facts.descriptors_max = Some(1024), Warn, "descriptors", "LimitNOFILE"),
            (|facts| facts.descriptors_max = Some(256), Fail, "descriptors", "LimitNOFILE"),
            (|facts| facts.watches_max = Some(0), Warn, "watches", "max_user_groups"),
            (|facts| facts.usable = limited(GIB), Fail, "memory", "lower `pool`"),
            (|facts| facts.usable = limited(GIB + GIB / 8), Warn, "memory", "MemoryMax"),
            (|facts| facts.usable = Ok(Usable::new(GIB + GIB / 8, None)), Warn, "memory", "lower `pool`"),
            (|facts| facts.usable = Err("no".into()), Fail, "memory", "/proc"),
            (|facts| facts.huge_pages = Some("always madvise [never]".into()), Warn, "huge pages", "madvise"),
            (|facts| facts.config = Some(Err("f:3: what".into())), Fail, "configuration", "line"),
            (|facts| facts.directories[0].1 = Err("gone".into()), Fail, "directory", "create it"),
            (|facts| facts.stores[0].1 = Err("no answer".into()), Fail, "store", "credentials"),
            (|facts| facts.stores[0].1 = Ok(answered_in(300)), Warn, "store", "region"),
            (|facts| facts.stagings[0] = staged(Err("read-only".into())), Fail, "staging", "create it"),
            (|facts| facts.stagings[0] = staged(Ok(GIB)), Fail, "staging", "make room"),
            (|facts| facts.stagings[0] = staged(Ok(10 * GIB)), Warn, "staging", "make room"),
        ];
        for (spoil, severity, check, advice) in cases {
            let mut facts = well();
            spoil(&mut facts);
            let bad: Vec<Finding> =
                findings(&facts).into_iter().filter(|finding| finding.severity != Severity::Ok).collect();
            let [finding] = bad.as_slice() else { panic!("{check}: {bad:?}") };
            assert_eq!((finding.check, finding.severity), (check, severity), "{finding:?}");
            assert!(finding.advice.as_ref().unwrap().contains(advice), "{finding:?}");
        }
    }

    #[test]
    fn an_ordinary_user_needs_what_it_wants() {
        let mut facts = Facts { is_root: false, wants_others: true, may_mount_for_others: true, ..well() };
        assert!(findings(&facts).iter().all(|finding| finding.severity == Severity::Ok));
        (facts.wants_others, facts.may_mount_for_others) = (false, false);
        assert!(findings(&facts).iter().all(|finding| finding.severity == Severity::Ok));
    }

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(version_of("6.18.5-amd64"), Some((6, 18)));
        assert_eq!(version_of("5.4"), Some((5, 4)));
        for release in ["", "x", "6", "6.x"] {
            assert_eq!(version_of(release), None, "{release}");
        }
    }
}
