//! Benchmarks of umemcg's hot paths, each against the physical limit, the kernel, and the
//! alternatives of a user, in one run.
//!
//! A benchmark checks its own results and fails when one is wrong. A missed target is printed; it
//! fails the run only with `--enforce`, because other work on the machine can cause a missed
//! target, but only a defect gives wrong bytes.
#![forbid(unsafe_code)]

mod account;
mod background;
mod busy_threads;
mod c_project;
mod charge;
mod chart;
mod control;
mod dirty_throttle;
#[cfg(feature = "experiments")]
mod drop_caches;
mod eviction;
#[cfg(feature = "experiments")]
mod faults;
mod fio;
mod footprint;
#[cfg(feature = "experiments")]
mod fork_bomb;
mod fuse;
mod grouped_mount;
mod guarantee;
mod hit;
mod idle_threads;
mod kernel_build;
mod kernel_pages;
mod kernel_reclaim;
mod kernel_view;
mod machine;
mod many_groups;
#[cfg(feature = "experiments")]
mod many_volumes;
mod metrics;
mod mounts;
mod neighbour;
mod neighbour_choice;
mod neighbour_dirty;
mod neighbour_load;
mod object_cache;
mod options;
mod origin;
mod plot;
mod programs;
mod progress;
mod report;
mod results;
mod rivals;
mod scale;
#[cfg(feature = "experiments")]
mod served_mount;
#[cfg(feature = "experiments")]
mod slab;
#[cfg(feature = "experiments")]
mod soft_limit;
#[cfg(feature = "experiments")]
mod soft_pool;
#[cfg(feature = "experiments")]
mod soft_stream;
#[cfg(feature = "experiments")]
mod soft_walk;
mod source_tree;
mod stats;
mod store;
mod tenant;
mod tenants;
mod threads;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[cfg(feature = "experiments")]
use options::PageCache;
use options::{Failure, Options};

/// Benchmarks of umemcg, each against its yardstick in the same run.
#[derive(Debug, Parser)]
#[command(name = "umemcg-bench", version, arg_required_else_help = true, max_term_width = 110)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Accounts of queries: 4 KiB taken and given back, and refusals, against DataFusion's greedy
    /// and fair pools
    Account(account::Program),
    /// A file written and read in a group with marks and without: the reclaiming threads, and the
    /// cost of the calls
    Background,
    /// Charging 4 KiB and 100 B to groups and everything above them, against bare atomics and no
    /// accounting
    Charge,
    /// A writer over its dirty limit on a slow store: its throughput, its pauses, its dirty data
    /// over time, and its neighbour's pauses
    DirtyThrottle(dirty_throttle::Figure),
    /// 4,000 groups with a volume each, five drops of all caches, with the map of shrinkers and
    /// without
    #[cfg(feature = "experiments")]
    DropCaches,
    /// Which pages stay when the kernel keeps them: hit ratios of made-up and recorded traces
    /// against own pages, LRU and S3-FIFO
    Eviction(eviction::Yardstick),
    /// One page touched again and again, with the controller, with dirty limits, and without any
    /// controller
    #[cfg(feature = "experiments")]
    Faults,
    /// 255 idle groups with volumes beside one under pressure: the cost of asking shrinkers, with
    /// the map and without
    #[cfg(feature = "experiments")]
    ForkBomb,
    /// Two thousand groups with marks, streaming at once and then idle: the progress of each group,
    /// and the processor time of the workers
    ManyGroups,
    /// The mount as programs see it: reads, writes and names, against passthrough_hp and fuser
    Fuse(fuse::Programs),
    /// A guaranteed share, lent to other groups: the time to get it back from the borrowers
    Guarantee,
    /// Reads of cached pages: 4 KiB copied and 8 bytes in place, against memcpy and the kernel's
    /// page cache
    Hit,
    /// Pages of tenants in the kernel's cache with `--page-cache kernel`: their number, the effect
    /// on a neighbour, and the cost of taking them back
    KernelPages(fuse::Programs),
    /// A file written and read on a mount whose pages the kernel keeps, with marks and without; and
    /// a stream beyond a soft limit of 0 beside a tenant that holds nearly everything
    KernelReclaim(fuse::Programs),
    /// `slab` on a mount whose pages the kernel keeps
    #[cfg(feature = "experiments")]
    KernelSlab,
    /// `soft-limit` on a mount whose pages the kernel keeps
    #[cfg(feature = "experiments")]
    KernelSoftLimit,
    /// The figures of 10,000 tenants: one snapshot, and group by group
    Metrics,
    /// A tenant reading a file that fits its share, beside a tenant that streams, writes or walks
    /// names: the effect on its reads
    Neighbour(neighbour_choice::Choice),
    /// A tenant of `neighbour`
    #[command(hide = true)]
    NeighbourLoad(neighbour_load::Load),
    /// The effect of a pressing tenant on another: with hundreds of threads and groups, a hung
    /// store, pinned names, renames, events, rewrites
    Tenants(footprint::Program),
    /// tar, grep, git, rm, dd and fio on the mount, on the plain directory and on passthrough_hp
    /// with the kernel's caching
    Programs(programs::Choice),
    /// ObjectCache, all hits and Zipf with insert on miss, against quick_cache, foyer, mini-moka
    /// and moka
    ObjectCache(object_cache::Program),
    /// One operation with 1, 100, 10,000 and 100,000 groups: create, charge, reclaim, read
    /// memory.stat, remove
    Scale,
    /// A real build full of small files in one group at its limit: names and inodes shrunk per
    /// group, from one list, not at all
    #[cfg(feature = "experiments")]
    Slab,
    /// Memory of the daemon at a full pool: all pages, half names and inodes, and after everything
    /// was dropped
    Footprint(footprint::Program),
    /// Two real builds in a small pool, without soft limits and with soft limit 0: old way, rework,
    /// full
    #[cfg(feature = "experiments")]
    SoftLimit,
    /// A group streaming through its soft limit beside a group holding nearly everything, against
    /// the mechanism from before the mail
    #[cfg(feature = "experiments")]
    SoftStream,
    /// The same with up to 8,000 idle groups beside it, and reclaim beside 100,000 when no group
    /// has a soft limit
    #[cfg(feature = "experiments")]
    SoftWalk,
    /// One operation with 4 to 1,024 idle threads, and with up to 8,000 dirty groups: hit, miss,
    /// charge, refused charge, first write, a look at dirty bytes
    Threads,
    /// Misses and new pages of one thread, and of two that work at the same time
    BusyThreads,
    /// Write a page of results from reports that were printed with --json
    Results(results::Page),
    /// Print the names of all benchmarks and experiments
    Names,
}

/// Subcommands that measure nothing.
const TOOLS: [&str; 4] = ["results", "names", "neighbour-load", "help"];

fn print_names() {
    let command = Arguments::command();
    for name in command.get_subcommands().map(|c| c.get_name()).filter(|name| !TOOLS.contains(name)) {
        println!("{name}");
    }
}

/// Runs the benchmark or tool. Returns the report, if it makes one.
fn run(options: &Options, benchmark: Benchmark) -> Result<Option<report::Report>, Failure> {
    let report = match benchmark {
        Benchmark::Account(program) => account::run(options, &program),
        Benchmark::Background => background::run(options),
        Benchmark::Charge => charge::run(options),
        Benchmark::DirtyThrottle(figure) => dirty_throttle::run(options, &figure),
        #[cfg(feature = "experiments")]
        Benchmark::DropCaches => drop_caches::run(options),
        Benchmark::Eviction(yardstick) => eviction::run(options, &yardstick),
        #[cfg(feature = "experiments")]
        Benchmark::Faults => faults::run(options),
        #[cfg(feature = "experiments")]
        Benchmark::ForkBomb => fork_bomb::run(options),
        Benchmark::ManyGroups => many_groups::run(options),
        Benchmark::Fuse(programs) => fuse::run(options, &programs),
        Benchmark::Guarantee => guarantee::run(options),
        Benchmark::Hit => hit::run(options),
        Benchmark::KernelPages(programs) => kernel_pages::run(options, &programs),
        Benchmark::KernelReclaim(programs) => kernel_reclaim::run(options, &programs),
        #[cfg(feature = "experiments")]
        Benchmark::KernelSlab => slab::run(options, PageCache::Kernel),
        #[cfg(feature = "experiments")]
        Benchmark::KernelSoftLimit => soft_limit::run(options, PageCache::Kernel),
        Benchmark::Metrics => metrics::run(options),
        Benchmark::Neighbour(choice) => neighbour::run(options, &choice),
        Benchmark::NeighbourLoad(load) => return load.run().map(|()| None),
        Benchmark::ObjectCache(program) => object_cache::run(options, &program),
        Benchmark::Programs(choice) => programs::run(options, &choice),
        Benchmark::Scale => scale::run(options),
        #[cfg(feature = "experiments")]
        Benchmark::Slab => slab::run(options, PageCache::Own),
        #[cfg(feature = "experiments")]
        Benchmark::SoftLimit => soft_limit::run(options, PageCache::Own),
        Benchmark::Footprint(program) => footprint::run(options, &program),
        Benchmark::BusyThreads => busy_threads::run(options),
        Benchmark::Threads => idle_threads::run(options),
        Benchmark::Tenants(program) => tenants::run(options, &program),
        #[cfg(feature = "experiments")]
        Benchmark::SoftStream => soft_stream::run(options),
        #[cfg(feature = "experiments")]
        Benchmark::SoftWalk => soft_walk::run(options),
        Benchmark::Names => {
            print_names();
            return Ok(None);
        }
        Benchmark::Results(page) => return page.write().map(|()| None),
    };
    report.map(Some)
}

fn main() -> ExitCode {
    let Arguments { options, benchmark } = Arguments::parse();
    let is_tool = matches!(benchmark, Benchmark::NeighbourLoad(_) | Benchmark::Results(_) | Benchmark::Names);
    // Before the run: the run is part of the load afterwards.
    let origin = (!is_tool).then(origin::Origin::look);
    match run(&options, benchmark) {
        Ok(report) => {
            let Some((report, origin)) = report.zip(origin) else { return ExitCode::SUCCESS };
            if let Err(error) = report.print(options.json, &origin) {
                eprintln!("umemcg-bench: cannot print the report: {error}");
                return ExitCode::from(2);
            }
            let missed = options.enforce && !report.all_reached();
            if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(Failure::Wrong(what)) => {
            eprintln!("umemcg-bench: wrong result: {what}");
            ExitCode::FAILURE
        }
        Err(Failure::Setup(what)) => {
            eprintln!("umemcg-bench: {what}");
            ExitCode::from(2)
        }
    }
}
