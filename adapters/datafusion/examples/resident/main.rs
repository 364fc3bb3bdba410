//! Compares the bytes charged to a tenant with the bytes allocated by its queries and the resident
//! memory of the process.
//!
//! `cargo run --release --example resident -- [MiB]`
//!
//! A separate example: counting allocations takes time, and would distort the times of `figures`.

#[path = "../../tests/tenant/tpch.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod tpch;

mod peak;

use std::alloc::System;
use std::process::ExitCode;

use cap::Cap;

use crate::peak::Peaks;
use crate::tpch::{AGGREGATE, JOIN, MIXED, SORT};

#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

/// Scans all columns read by the queries, without operators that keep rows.
const SCAN: &str = "SELECT * FROM lineitem UNION ALL SELECT l_orderkey, l_partkey, l_suppkey, l_linenumber, \
    l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag, l_linestatus, l_shipdate, l_commitdate, \
    l_receiptdate, l_shipinstruct, l_shipmode, l_comment FROM lineitem";
/// The target: resident memory without a charge or a name is at most this part of the charged
/// bytes.
const BESIDE_PERCENT: f64 = 10.0;

fn main() -> ExitCode {
    let mib = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(96);
    // Before threads start: each arena of the allocator retains memory freed in it.
    umemcg::limit_heap_arenas(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime of two threads");
    runtime.block_on(print(mib));
    ExitCode::SUCCESS
}

async fn print(mib: u64) {
    let peaks = Peaks::new(mib);
    // Warm-up: generates the tables, pages in the code, starts the threads.
    peaks.of(JOIN).await;
    let scan = peaks.of(SCAN).await;
    // Memory of a scan: pages being decoded, and batches in transit.
    let decoded = scan.allocated.saturating_sub(scan.charged);
    println!("{mib} MiB; MiB above the idle process, at the peak of resident memory");
    println!(
        "           resident  charged |   scan  operators  allocator | beside, of charged  without a name"
    );
    for (name, query) in [("sort", SORT), ("aggregate", AGGREGATE), ("join", JOIN), ("mixed", MIXED)] {
        let at = peaks.of(query).await;
        let beside = at.resident.saturating_sub(at.charged);
        let not_reserved = at.allocated.saturating_sub(at.charged);
        let scan = not_reserved.min(decoded);
        let operators = not_reserved - scan;
        let allocator = at.resident.saturating_sub(at.allocated.max(at.charged));
        let of_charged = |bytes: u64| bytes as f64 * 100.0 / at.charged.max(1) as f64;
        let unnamed = of_charged(operators);
        println!(
            "{name:<10} {:>8.1} {:>8.1} | {:>6.1} {:>10.1} {:>10.1} | {:>16.1} % {unnamed:>10.1} %{}",
            in_mib(at.resident),
            in_mib(at.charged),
            in_mib(scan),
            in_mib(operators),
            in_mib(allocator),
            of_charged(beside),
            if unnamed > BESIDE_PERCENT { " above the target" } else { "" }
        );
    }
}

fn in_mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
