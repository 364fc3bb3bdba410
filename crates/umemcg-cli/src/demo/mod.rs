//! `umemcg demo`: mounts a temporary directory, runs programs in two groups, and prints a table of
//! the results.
//!
//! The group `quiet` reads a small file. Then the group `busy` copies and hashes a file four times
//! as large as its limit. Then `quiet` reads its file again. With one shared cache, this would read
//! the disk again. The demo checks its own results, and fails if a check fails.

mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use serde::Serialize;

use crate::args::DemoArguments;
use crate::exit::Failure;
use crate::output;
use crate::table::{TextTable, human_bytes};
use stage::{Daemon, Group, Places, copy_with_dd, sha256};

const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 256 * MIB;
const BUSY_LIMIT_BYTES: u64 = 32 * MIB;
const BUSY_FILE_BYTES: u64 = 4 * BUSY_LIMIT_BYTES;
const QUIET_LIMIT_BYTES: u64 = 96 * MIB;
const QUIET_FILE_BYTES: u64 = 24 * MIB;
/// The largest excess of usage over a limit, in bytes: the charges in flight, here at most four of
/// 1 MiB each.
const SLACK_BYTES: u64 = 4 * MIB;
/// The kernel's page cache keeps the pages, and no other program changes the directory.
const OPTIONS: [&str; 3] = ["--page-cache", "kernel", "--exclusive"];

/// The results of one group.
#[derive(Debug, Serialize)]
struct GroupResult {
    name: &'static str,
    limit_bytes: u64,
    usage_bytes: u64,
    max_usage_bytes: u64,
    largest_sample_bytes: u64,
    failcnt: u64,
    written_bytes: u64,
    hash_equal: bool,
    pages_reclaimed: u64,
    pages_read_again: u64,
}

/// The results of the demo.
#[derive(Debug, Serialize)]
struct DemoResult {
    pool_bytes: u64,
    daemon_resident_bytes: u64,
    groups: Vec<GroupResult>,
    checks: Vec<Check>,
}

/// Runs `umemcg demo`.
///
/// # Errors
/// [`Failure`] if a step or a check fails.
pub fn demo(arguments: &DemoArguments) -> Result<(), Failure> {
    let directory = tempfile::Builder::new()
        .prefix("umemcg-demo-")
        .tempdir()
        .map_err(|error| Failure::Failed(format!("cannot make a temporary directory: {error}")))?;
    let say = |text: &str| {
        if !arguments.json {
            output::show(&format!("{text}\n"));
        }
    };
    let result = run(&Places::below(directory.path())?, &say)?;
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(&result);
        json.map_err(|error| Failure::Failed(error.to_string()))? + "\n"
    } else {
        result.shown()
    };
    output::print(&text)?;
    end_with(&result.checks)
}

fn run(places: &Places, say: &dyn Fn(&str)) -> Result<DemoResult, Failure> {
    say(&format!("mounting {} on {}", places.data.display(), places.mountpoint.display()));
    let mut daemon = Daemon::start(places, POOL_BYTES, &OPTIONS)?;
    let quiet = Group::make(places, "quiet", QUIET_LIMIT_BYTES)?;
    let busy = Group::make(places, "busy", BUSY_LIMIT_BYTES)?;

    say(&format!("making a file of {} to copy", human_bytes(BUSY_FILE_BYTES)));
    copy_with_dd(None, Path::new("/dev/urandom"), &places.source, BUSY_FILE_BYTES)?;
    let source_hash = sha256(None, &places.source)?;

    say("quiet: writes and reads a small file");
    let quiet_file = places.mountpoint.join("quiet.bin");
    copy_with_dd(Some(&quiet), &places.source, &quiet_file, QUIET_FILE_BYTES)?;
    let quiet_hash = sha256(Some(&quiet), &quiet_file)?;
    let pages_before = quiet.stat("total_pgpgin")?;

    say(&format!(
        "busy: copies and hashes {} under a limit of {}",
        human_bytes(BUSY_FILE_BYTES),
        human_bytes(BUSY_LIMIT_BYTES)
    ));
    let busy_file = places.mountpoint.join("busy.bin");
    let sampler = Sampler::start(busy.directory.join("memory.usage_in_bytes"));
    let copied = copy_with_dd(Some(&busy), &places.source, &busy_file, BUSY_FILE_BYTES);
    let busy_hash = copied.and_then(|()| sha256(Some(&busy), &busy_file));
    let largest_sample_bytes = sampler.finish();
    let busy_hash = busy_hash?;

    say("quiet: reads its file again");
    let quiet_hash_again = sha256(Some(&quiet), &quiet_file)?;
    let pages_read_again = quiet.stat("total_pgpgin")?.saturating_sub(pages_before);

    let mut groups =
        vec![GroupResult::of(&busy, largest_sample_bytes, BUSY_FILE_BYTES, busy_hash == source_hash, 0)?];
    let quiet_sample = quiet.number("memory.usage_in_bytes")?;
    groups.push(GroupResult::of(
        &quiet,
        quiet_sample,
        QUIET_FILE_BYTES,
        quiet_hash == quiet_hash_again,
        pages_read_again,
    )?);
    let daemon_resident_bytes = daemon.resident_bytes()?;

    say("unmounting: everything becomes durable first");
    let ended_well = daemon.umount(places)?;
    let durable_hash = sha256(None, &places.data.join("busy.bin"))?;
    let checks = checks_of(&groups, daemon_resident_bytes, ended_well, durable_hash == source_hash);
    Ok(DemoResult { pool_bytes: POOL_BYTES, daemon_resident_bytes, groups, checks })
}

fn checks_of(groups: &[GroupResult], resident_bytes: u64, ended_well: bool, durable: bool) -> Vec<Check> {
    let check = |what: &str, holds| Check { what: what.to_owned(), holds };
    let mut checks = Vec::new();
    for group in groups {
        let highest = group.max_usage_bytes.max(group.largest_sample_bytes);
        checks.push(check(
            &format!("{} stayed within its limit (and {} in flight)", group.name, human_bytes(SLACK_BYTES)),
            highest <= group.limit_bytes + SLACK_BYTES,
        ));
        checks.push(check(&format!("{} read what was written", group.name), group.hash_equal));
    }
    let busy = groups.iter().find(|group| group.name == "busy");
    checks.push(check("busy was held by its limit", busy.is_some_and(|group| group.failcnt > 0)));
    let quiet = groups.iter().find(|group| group.name == "quiet");
    checks.push(check(
        "quiet was left alone: nothing of it was reclaimed",
        quiet.is_some_and(|group| group.failcnt == 0 && group.pages_reclaimed == 0),
    ));
    // The documented bound: 1.03 × pool + 32 MiB.
    let bound_bytes = POOL_BYTES / 100 * 103 + 32 * MIB;
    checks.push(check("the daemon stayed within its pool", resident_bytes <= bound_bytes));
    checks.push(check("the daemon ended well", ended_well));
    checks.push(check("the directory holds what was written", durable));
    checks
}

impl DemoResult {
    /// Returns the table and the checks as text.
    fn shown(&self) -> String {
        let names = self.groups.iter().map(|group| group.name);
        let mut table = TextTable::new(&std::iter::once("group").chain(names).collect::<Vec<_>>());
        let mut row = |name: &str, cell: &dyn Fn(&GroupResult) -> String| {
            table.row(std::iter::once(name.to_owned()).chain(self.groups.iter().map(cell)));
        };
        row("limit", &|group| human_bytes(group.limit_bytes));
        row("usage at the end", &|group| human_bytes(group.usage_bytes));
        row("largest usage counted", &|group| human_bytes(group.max_usage_bytes));
        row("largest usage seen", &|group| human_bytes(group.largest_sample_bytes));
        row("charges that met the limit (failcnt)", &|group| group.failcnt.to_string());
        row("written", &|group| human_bytes(group.written_bytes));
        row("hash equal", &|group| yes(group.hash_equal).to_owned());
        row("pages read again", &|group| match group.name {
            "busy" => "-".to_owned(),
            _ => group.pages_read_again.to_string(),
        });
        row("pages reclaimed", &|group| group.pages_reclaimed.to_string());
        let mut text = format!(
            "{table}\nThe daemon held {} of memory, with a pool of {}.\n\n",
            human_bytes(self.daemon_resident_bytes),
            human_bytes(self.pool_bytes)
        );
        if self.groups.iter().any(|group| group.pages_reclaimed == 0 && group.pages_read_again > 0) {
            text += "The kernel of this host reclaims unused pages by itself; some had to be read again.\n\n";
        }
        text + &shown(&self.checks)
    }
}

impl GroupResult {
    /// Reads the control files of a group.
    fn of(
        group: &Group,
        largest_sample_bytes: u64,
        written_bytes: u64,
        hash_equal: bool,
        pages_read_again: u64,
    ) -> Result<Self, Failure> {
        Ok(Self {
            name: group.name,
            limit_bytes: group.limit_bytes,
            usage_bytes: group.number("memory.usage_in_bytes")?,
            max_usage_bytes: group.number("memory.max_usage_in_bytes")?,
            largest_sample_bytes,
            failcnt: group.number("memory.failcnt")?,
            written_bytes,
            hash_equal,
            // Pages reclaimed to make room; compaction of the pool may reclaim one more.
            pages_reclaimed: group.stat("pgsteal_direct")? + group.stat("pgsteal_kswapd")?,
            pages_read_again,
        })
    }
}

/// A claim, and whether it holds.
#[derive(Debug, Serialize)]
struct Check {
    what: String,
    holds: bool,
}

/// Fails if a check does not hold.
fn end_with(checks: &[Check]) -> Result<(), Failure> {
    let broken: Vec<&str> =
        checks.iter().filter(|check| !check.holds).map(|check| check.what.as_str()).collect();
    match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("does not hold: {}", broken.join("; ")))),
    }
}

/// Returns a line for each check.
fn shown(checks: &[Check]) -> String {
    checks.iter().map(|check| format!("{:<5}{}\n", yes(check.holds), check.what)).collect()
}

fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "NO" }
}

/// Polls a number in a file while programs run, and keeps the maximum.
struct Sampler {
    stop: Arc<AtomicBool>,
    largest: mpsc::Receiver<u64>,
}

impl Sampler {
    fn start(file: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, largest) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        thread::spawn(move || {
            let mut largest_bytes = 0;
            while !stopped.load(Ordering::Relaxed) {
                let sample =
                    fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
                largest_bytes = largest_bytes.max(sample);
                thread::park_timeout(std::time::Duration::from_millis(1));
            }
            let _ = sender.send(largest_bytes);
        });
        Self { stop, largest }
    }

    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.largest.recv().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &'static str, limit_bytes: u64, failcnt: u64) -> GroupResult {
        GroupResult {
            name,
            limit_bytes,
            usage_bytes: limit_bytes,
            max_usage_bytes: limit_bytes,
            largest_sample_bytes: 0,
            failcnt,
            written_bytes: 0,
            hash_equal: true,
            pages_reclaimed: 0,
            pages_read_again: 0,
        }
    }

    #[test]
    fn a_good_run_passes_every_check_and_each_fault_fails_one() {
        let good = || vec![group("busy", BUSY_LIMIT_BYTES, 7), group("quiet", QUIET_LIMIT_BYTES, 0)];
        let nr_broken = |groups: &[GroupResult], resident, ended_well, durable| {
            checks_of(groups, resident, ended_well, durable).iter().filter(|check| !check.holds).count()
        };
        assert_eq!(nr_broken(&good(), POOL_BYTES, true, true), 0);
        assert_eq!(nr_broken(&good(), 2 * POOL_BYTES, true, true), 1);
        assert_eq!(nr_broken(&good(), POOL_BYTES, false, true), 1);
        assert_eq!(nr_broken(&good(), POOL_BYTES, true, false), 1);
        let faults: [fn(&mut Vec<GroupResult>); 5] = [
            |groups| groups[0].largest_sample_bytes = BUSY_LIMIT_BYTES + SLACK_BYTES + 1,
            |groups| groups[0].hash_equal = false,
            |groups| groups[0].failcnt = 0,
            |groups| groups[1].pages_reclaimed = 1,
            |groups| groups[1].failcnt = 1,
        ];
        for fault in faults {
            let mut groups = good();
            fault(&mut groups);
            assert_eq!(nr_broken(&groups, POOL_BYTES, true, true), 1, "{groups:?}");
        }
    }
}
