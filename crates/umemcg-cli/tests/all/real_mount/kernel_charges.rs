//! The kernel's own charges for the file pages of a mount, in cgroups of its memory controller, of
//! version 1 or 2: one for the programs that use the mount, and one for the daemon.

use crate::harness::{Mount, holds_in_time, needs_mount};
use crate::real_mount::kernel_group::KernelGroup;

const MIB: u64 = 1 << 20;
/// The programs themselves, buffers of requests, and blocks of memory of which little is used.
const BESIDE: u64 = 12 * MIB;
/// Gives back the memory that the daemon keeps for later.
const COMPACT: &str = "echo 1 > $CG/vm.compact_memory";

/// A mount, and the kernel's cgroups.
struct Charged {
    /// Dropped before the cgroup of its daemon.
    mount: Mount,
    programs: KernelGroup,
    daemon: KernelGroup,
    /// The bytes of the daemon before it served anything.
    daemon_before: u64,
}

impl Charged {
    /// Starts a daemon in its cgroup; none where no cgroup can be made.
    fn start(page_cache: &str) -> Option<Self> {
        let (programs, daemon) = (KernelGroup::of_memory("programs")?, KernelGroup::of_memory("daemon")?);
        let mut mount = Mount::start();
        mount.umount();
        let refused = mount.try_daemon(&daemon.enter(), &["--pool", "256M", "--page-cache", page_cache]);
        assert!(refused.is_none(), "{refused:?}");
        mount.sh(COMPACT).good();
        let daemon_before = daemon.usage();
        Some(Self { mount, programs, daemon, daemon_before })
    }

    /// Runs a script whose programs are in their cgroup.
    #[track_caller]
    fn sh(&self, script: &str) {
        self.mount.sh(&format!("{}; {script}", self.programs.enter())).good();
    }

    /// Returns the bytes of the programs, and those that the daemon has more than at first.
    fn bytes(&self) -> (u64, u64) {
        (self.programs.usage(), self.daemon.usage().saturating_sub(self.daemon_before))
    }

    /// Runs a script until the bytes are right.
    #[track_caller]
    fn until(&self, what: &str, script: &str, is_right: impl Fn(u64, u64) -> bool) {
        let mut seen = (0, 0);
        let is_so = holds_in_time(|| {
            self.sh(script);
            seen = self.bytes();
            is_right(seen.0, seen.1)
        });
        assert!(is_so, "{what}: bytes of the programs, of the daemon: {seen:?}");
    }
}

#[test]
fn the_kernel_charges_a_page_to_the_cgroup_that_keeps_it() {
    needs_mount!();
    for page_cache in ["kernel", "own"] {
        let Some(mut charged) = Charged::start(page_cache) else {
            return eprintln!("no kernel cgroup for memory can be made here");
        };
        charged.mount.sh("head -c 32M /dev/urandom > $DATA/f").good();
        // Again if the host has dropped some meanwhile.
        let read = format!("cat $MNT/f > /dev/null; {COMPACT}");
        charged.until(page_cache, &read, |programs, daemon| {
            let (keeper, other) =
                if page_cache == "kernel" { (programs, daemon) } else { (daemon, programs) };
            keeper >= 30 * MIB && other < BESIDE
        });
        charged.mount.umount();
    }
}

#[test]
fn the_kernel_charges_dirty_pages_to_the_daemon_as_well() {
    needs_mount!();
    let Some(mut charged) = Charged::start("kernel") else {
        return eprintln!("no kernel cgroup for memory can be made here");
    };
    // Neither their age nor the length of a file has them written.
    charged.mount.sh("echo 0 > $CG/vm.dirty_writeback_centisecs").good();
    charged.sh("for f in 1 2 3 4; do head -c 4M /dev/urandom > $MNT/$f; done");
    let (programs, daemon) = charged.bytes();
    assert!(programs >= 14 * MIB && daemon >= 14 * MIB, "{programs} and {daemon} bytes");
    charged.mount.sh("$UMEMCG sync $MNT").good();
    charged.until("durable", COMPACT, |_, daemon| daemon < BESIDE);
    charged.mount.umount();
}
