//! The figures of docs/compare.md are those of docs/results.md.

use std::fs;
use std::path::Path;

fn page(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    fs::read_to_string(docs.join(name)).unwrap()
}

/// Returns the median of a row of a table in a section of the results.
fn median(results: &str, (section, table, row): (&str, &str, &str)) -> f64 {
    let (_, rest) = results.split_once(&format!("\n## {section}\n")).unwrap();
    let rest = rest.split("\n## ").next().unwrap();
    let (_, rest) =
        rest.split_once(&format!("\n| {table} (")).unwrap_or_else(|| panic!("{section}: {table}"));
    let rows = rest.split("\n\n").next().unwrap();
    let found = rows.lines().find_map(|line| line.strip_prefix("| ")?.strip_prefix(row)?.strip_prefix(" | "));
    let found = found.unwrap_or_else(|| panic!("{table}: {row}"));
    found.split(" |").next().unwrap().parse().unwrap()
}

/// Returns a number with its thousands apart.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    match digits.len() {
        0..=3 => digits,
        len => format!("{},{}", &digits[..len - 3], &digits[len - 3..]),
    }
}

#[test]
fn look_ups_take_what_the_results_say() {
    let (compare, results) = (page("compare.md"), page("results.md"));
    for (name, hits) in [
        ("umemcg, 1 group", "80.95"),
        ("umemcg, 64 groups", "80.91"),
        ("quick_cache", "80.78"),
        ("moka", "80.60"),
    ] {
        let all_hits = median(&results, ("object-cache", "all hits, uniform, 1 thread", name));
        let with_hits = format!("{name}, {hits} % hits");
        let inserts = median(&results, ("object-cache", "Zipf 0.99, insert on miss, 1 thread", &with_hits));
        // Halves are rounded to either side.
        let row =
            |inserts| format!("| {name} | {} ns | {} ns | {hits} % |", grouped(all_hits), grouped(inserts));
        let rows = [inserts, inserts + 0.01].map(row);
        assert!(rows.iter().any(|row| compare.contains(row.as_str())), "{rows:?}");
    }
    let two = |table: &str, row: &str| grouped(median(&results, ("object-cache", table, row)));
    let hits = "all hits, uniform, 2 threads";
    let inserts = "Zipf 0.99, insert on miss, 2 threads";
    let said = format!(
        "On two threads hits take {} ns in umemcg (1 group) and {} ns in quick_cache, with inserts {} ns\nand {} ns.",
        two(hits, "umemcg, 1 group"),
        two(hits, "quick_cache"),
        two(inserts, "umemcg, 1 group, 81.02 % hits"),
        two(inserts, "quick_cache, 80.84 % hits"),
    );
    assert!(compare.contains(&said), "{said}");
}

#[test]
fn a_neighbour_leaves_what_the_results_say() {
    let (compare, results) = (page("compare.md"), page("results.md"));
    let calls = |row| median(&results, ("neighbour", "B streams; A: calls", row));
    let (kernel, mount) = (calls("kernel, two cgroups"), calls("two groups, no marks"));
    let thousands = |number: f64| format!("{:.0},000", number / 1000.0);
    assert!(compare.contains(&thousands(kernel)) && compare.contains(&thousands(mount)), "{kernel} {mount}");
    assert!(compare.contains("sixteen times") && (kernel / mount).round() == 16.0);
    // What is asked for is what is served.
    assert!(results.contains("due 43966 a second on the mount and 711019 on the host's files"));
}
