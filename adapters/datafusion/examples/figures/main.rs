//! Compares a tenant's pool with DataFusion's `FairSpillPool`: elapsed and processor time.
//!
//! `cargo run --release --example figures -- [MiB] [rounds]`

#[path = "../../tests/tenant/tpch.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod tpch;

mod elapsed;

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    // Before threads start: each arena of the allocator retains memory freed in it.
    umemcg::limit_heap_arenas(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime of two threads");
    runtime.block_on(elapsed::print(number(64), number(9)))
}
