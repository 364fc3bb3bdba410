//! The table of `LOCKING.md` is the ranks as they are.

use std::fmt::Write;

use umemcg_base::rank::RANKS;

const BEGIN_MARK: &str = "<!-- ranks: generated from umemcg-base/src/rank.rs, do not edit -->";
const END_MARK: &str = "<!-- ranks: end -->";

fn table() -> String {
    let mut text =
        format!("{BEGIN_MARK}\n| rank | name | is | guards, or waits for | where |\n|---|---|---|---|---|\n");
    for info in RANKS {
        let (number, kind) = (info.rank as u8, if info.is_lock { "lock" } else { "wait" });
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {number} | {:?} | {kind} | {} | {} |", info.rank, info.what, info.place);
    }
    text + END_MARK
}

/// With `UPDATE_DOCS` in the environment, brings the document up to date instead.
#[test]
fn the_document_shows_the_ranks_as_they_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LOCKING.md");
    let Ok(document) = std::fs::read_to_string(path) else { return };
    let (before, rest) = document.split_once(BEGIN_MARK).expect("LOCKING.md has a table of ranks");
    let (_, after) = rest.split_once(END_MARK).expect("the table of ranks has an end");
    let fresh = format!("{before}{}{after}", table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, fresh).unwrap();
    } else {
        assert!(
            fresh == document,
            "LOCKING.md is out of date: UPDATE_DOCS=1 cargo test -p umemcg-base locking"
        );
    }
}

#[test]
fn every_rank_stands_in_the_table_at_its_place() {
    for (at, info) in RANKS.iter().enumerate() {
        assert_eq!(info.rank as usize, at + 1, "{:?}", info.rank);
    }
}
