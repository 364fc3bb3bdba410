//! The list in docs/design/requests.md of what the kernel holds while it waits for the daemon.

use std::collections::BTreeSet;
use std::fs;

use crate::root;
use crate::tidy::rust_files;

/// Returns the cells of a column of the list.
fn column(list: &str, nr: usize) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| line.starts_with("| ")).filter_map(move |row| row.split('|').nth(nr))
}

#[test]
fn the_list_names_each_operation_and_tests_that_exist() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (wire, page) = (read("crates/umemcg-fuse/src/wire/mod.rs"), read("docs/design/requests.md"));
    let (_, opcodes) = wire.split_once("pub mod opcode {").unwrap();
    let (opcodes, _) = opcodes.split_once("\n}").unwrap();
    let opcodes: BTreeSet<&str> = opcodes
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub const "))
        .filter_map(|constant| constant.split(':').next())
        .collect();
    let (_, list) = page.split_once("\n## What the kernel holds while it waits").unwrap();
    let is_of_opcode = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    let listed: BTreeSet<&str> =
        column(list, 2).flat_map(|cell| cell.split(move |letter: char| !is_of_opcode(letter))).collect();
    let missing: Vec<_> = opcodes.difference(&listed).collect();
    assert!(opcodes.len() > 40 && missing.is_empty(), "operations without a row: {missing:?}");

    let tests: BTreeSet<&str> = column(list, 4).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let files = rust_files();
    let exists = |test: &str| files.iter().any(|(_, text)| text.contains(&format!("fn {test}()")));
    let gone: Vec<_> = tests.iter().filter(|test| !exists(test)).collect();
    assert!(!tests.is_empty() && gone.is_empty(), "tests that do not exist: {gone:?}");
}
