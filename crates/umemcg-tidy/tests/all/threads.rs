//! The starts of threads in the product.

use crate::tidy::{shipped_files, without_tests};

/// Programs for a developer's machine, which may end when it has no thread for them.
const FREE: [&str; 4] =
    ["crates/umemcg-base/src/schedule/", "crates/umemcg-bench/", "crates/umemcg-cli/src/demo/", "fuzz/"];

/// `std::thread::spawn` panics when the system refuses a thread, and a tenant can use up the
/// threads of a machine. `umemcg_base::clock` and `std::thread::Builder` return the refusal.
/// Clippy's `disallowed-methods` would forbid it to tests, too.
#[test]
fn no_thread_of_the_product_panics_when_it_is_refused() {
    let mut wrong = Vec::new();
    for (name, text) in shipped_files(&FREE) {
        let code = without_tests(&text).filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (at, line) in code.filter(|(_, line)| line.contains("thread::spawn")) {
            wrong.push(format!("{name}:{at}: {}", line.trim()));
        }
    }
    assert!(wrong.is_empty(), "start threads with umemcg_base::clock or a Builder: {wrong:#?}");
}
