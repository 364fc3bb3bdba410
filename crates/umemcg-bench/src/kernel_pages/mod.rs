//! `kernel-pages`: the kernel's cached pages of tenants when its page cache is under their limits,
//! and the cost of reclaiming them.
//!
//! The daemon of this build with `--page-cache kernel`, its control files, and programs in its
//! groups. The kernel's pages are counted by a program of its own with cachestat(2), not by the
//! daemon. In the first part tenant A streams through ten times the pool while B holds a file
//! within its limit; in the second, pages are reclaimed and a stream goes through ten times the
//! room of its group, beside `posix_fadvise(2)` on a plain file and beside `--page-cache own`.

mod bounds;
mod costs;
mod ground;

use crate::fuse::Programs;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::Report;

use ground::{Ground, MIB, STREAM_FACTOR};

/// Runs the experiment.
pub fn run(options: &Options, programs: &Programs) -> Result<Report, Failure> {
    let progress = Progress::new();
    let mut report = Report::new("kernel-pages", options.scale, options.rounds as usize);
    progress.show("writing the files");
    let ground = Ground::new(options, programs)?;
    bounds::run(options, &ground, &progress, &mut report)?;
    costs::run(options, &ground, &progress, &mut report)?;
    let sizes = ground.sizes;
    report.notes.push(format!(
        "pool {} MiB; A has {} MiB and streams through {} MiB in files of 8 MiB; B has {} MiB and holds a file of {} MiB; {} MiB are \
         taken back; the group that streams has {} MiB and reads {} MiB",
        sizes.pool / MIB,
        sizes.a / MIB,
        STREAM_FACTOR * sizes.pool / MIB,
        sizes.b / MIB,
        sizes.set / MIB,
        sizes.taken / MIB,
        sizes.room / MIB,
        STREAM_FACTOR * sizes.room / MIB,
    ));
    ground.end()?;
    Ok(report)
}
