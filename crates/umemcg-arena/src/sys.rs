//! System calls that need `unsafe` and have no safe wrapper among the dependencies.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use umemcg_base::PAGE_SIZE;

/// The request number, `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_E500;

/// Makes `device`, a fresh descriptor of `/dev/fuse`, another queue of the session served by
/// `session`. Requests read from a queue are answered there, and readers do not contend for one
/// lock.
///
/// # Errors
/// `EINVAL` when `device` already serves a session or `session` serves none.
pub fn clone_fuse_fd(device: BorrowedFd<'_>, session: BorrowedFd<'_>) -> io::Result<()> {
    let mut session = session.as_raw_fd() as u32;
    // SAFETY: [7] The call reads one `u32` at the address.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &raw mut session) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Smallest block mapped by itself, and unmapped when freed (`M_MMAP_THRESHOLD`), in bytes: glibc's
/// initial value.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: libc::c_int = 128 << 10;
/// Most free bytes kept at the end of an arena (`M_TRIM_THRESHOLD`).
#[cfg(target_env = "gnu")]
const KEPT_BYTES_MAX: libc::c_int = 1 << 20;

/// Limits the freed memory retained by the C library's allocator. Each arena retains its own, so at
/// most `nr` arenas are allowed. Blocks of 128 KiB or more are given back at once; otherwise glibc
/// raises that threshold to the size of the largest block ever freed, up to 32 MiB, and each arena
/// retains such blocks. Returns whether the limits were set: not with a C library other than GNU's,
/// and not once the process has a second thread, since the allocator accepts such settings only
/// from a single thread.
#[doc(alias = "mallopt")]
pub fn limit_heap_arenas(nr: u32) -> bool {
    #[cfg(target_env = "gnu")]
    {
        let nr_threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
        if nr_threads.is_ok_and(|nr| nr == 1) {
            let nr = nr.min(i32::MAX as u32) as libc::c_int;
            let settings = [
                (libc::M_ARENA_MAX, nr),
                (libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
                (libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX),
            ];
            // SAFETY: [7] No addresses. This is the only thread.
            return settings.into_iter().all(|(name, value)| unsafe { libc::mallopt(name, value) == 1 });
        }
    }
    let _ = nr;
    false
}

/// Gives whole pages of freed heap memory back to the operating system; takes milliseconds when
/// there is much of it, and locks the heap meanwhile, one arena at a time. Does nothing with a C
/// library other than GNU's.
#[doc(alias = "malloc_trim")]
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: [7] No addresses.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Requests huge pages for memory of this process at `address`, where whole ones fit; the contents
/// stay. Best called before the first write. Does nothing where the operating system has none.
#[doc(alias = "MADV_HUGEPAGE")]
pub fn prefer_huge_pages(address: usize, bytes: usize) {
    let Some(start) = address.checked_next_multiple_of(PAGE_SIZE) else { return };
    let end = address.saturating_add(bytes) & !(PAGE_SIZE - 1);
    if start < end {
        // SAFETY: [2] The advice changes how the kernel backs a range, never what it holds; of a
        // range that is not mapped it says so.
        unsafe {
            libc::madvise(std::ptr::without_provenance_mut(start), end - start, libc::MADV_HUGEPAGE);
        }
    }
}

/// Returns Linux's id of the calling thread.
#[doc(alias = "gettid")]
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Gives the calling thread the policy `SCHED_BATCH`: it never preempts another thread just because
/// it was woken. It keeps its fair share of the processor, so waiters for its locks do not wait for
/// long. For workers whose waker continues working. A thread with another policy than the ordinary
/// one keeps it.
///
/// # Errors
/// When the operating system refuses, as in some sandboxes.
#[doc(alias = "SCHED_BATCH")]
pub fn yield_to_wakers() -> io::Result<()> {
    // SAFETY: [7] No addresses.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return Ok(());
    }
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: [7] The call reads one `sched_param` at the address.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the scheduling policy, field 41 of `stat`, counted from behind the name.
    fn policy() -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let behind_name = stat.rsplit_once(") ").unwrap().1;
        behind_name.split(' ').nth(41 - 3).unwrap().into()
    }

    #[test]
    fn advice_changes_no_contents_and_none_of_it_is_fatal() {
        let mut memory: Vec<u8> = Vec::with_capacity(5 << 20);
        prefer_huge_pages(memory.as_ptr().addr(), 5 << 20);
        memory.extend((0..5 << 20).map(|at: u32| at as u8));
        prefer_huge_pages(memory.as_ptr().addr() + 1, (5 << 20) - 1);
        assert!(memory.iter().enumerate().all(|(at, &byte)| at as u8 == byte));
        for (address, bytes) in
            [(0, 0), (0, PAGE_SIZE), (1, 1), (usize::MAX, 1), (usize::MAX - PAGE_SIZE, usize::MAX)]
        {
            prefer_huge_pages(address, bytes);
        }
    }

    #[test]
    fn a_thread_that_yields_to_wakers_has_only_the_batch_policy() {
        let ordinary = policy();
        if ordinary == "0" {
            let (result, changed) = std::thread::spawn(|| (yield_to_wakers(), policy())).join().unwrap();
            assert!(result.is_err() || changed == "3", "{result:?} {changed}");
        }
        assert_eq!(policy(), ordinary);
    }

    #[test]
    fn the_allocator_is_told_nothing_while_other_threads_run() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || stopped.recv());
        assert!(!limit_heap_arenas(2));
        drop(stop);
        let _ = other.join();
    }
}
