//! The figures that documents quote are those of docs/results.md, or say when and of which commit
//! they were measured. `make figures` puts in the figures that the page has.

use std::fs;

use umemcg_tidy::{figures_without_source, with_figures_of};

use crate::root;

/// Figures that look measured and are not, with the reason. An entry that is not needed any more
/// fails the test.
const NOT_MEASURED: &[(&str, &str, &str)] = &[
    ("docs/background.md", "131 s", "the mail's"),
    ("docs/background.md", "300 s", "the mail's"),
    ("docs/design/reclaim.md", "2.3 times", "the mail's"),
    ("docs/kubernetes.md", "1.2 ×", "a bound"),
    ("docs/operating.md", "1.2 ×", "a bound"),
];

/// The documents by their paths, without the page itself and without the history of changes.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for directory in ["", "docs/", "docs/design/", "docs/semantics/"] {
        let entries = fs::read_dir(root().join(directory)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        found.extend(names.map(|name| format!("{directory}{name}")));
    }
    found.retain(|name| name.ends_with(".md") && name != "docs/results.md" && name != "CHANGELOG.md");
    found.sort();
    found
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

#[test]
fn quoted_figures_are_those_of_the_results() {
    let page = read("docs/results.md");
    let is_rewriting = std::env::var_os("UMEMCG_FIGURES").is_some();
    let mut wrong = Vec::new();
    for name in documents() {
        let document = read(&name);
        let (corrected, problems) = with_figures_of(&page, &document);
        if is_rewriting && corrected != document {
            fs::write(root().join(&name), corrected).unwrap();
        }
        wrong.extend(problems.iter().map(|problem| format!("{name}: {problem}")));
    }
    wrong.iter().filter(|_| is_rewriting).for_each(|problem| println!("{problem}"));
    assert!(is_rewriting || wrong.is_empty(), "`make figures` corrects those that the page has: {wrong:#?}");
}

#[test]
fn measured_figures_have_a_source() {
    let (mut wrong, mut unneeded) = (Vec::new(), NOT_MEASURED.to_vec());
    for name in documents() {
        for (line, figure) in figures_without_source(&read(&name)) {
            let is_listed = |&(file, text, _): &(&str, &str, &str)| file == name && text == figure;
            unneeded.retain(|entry| !is_listed(entry));
            if !NOT_MEASURED.iter().any(is_listed) {
                wrong.push(format!("{name}:{line}: {figure}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "neither a link to docs/results.md, nor \"at commit `…` on YYYY-MM-DD\" in the section: {wrong:#?}"
    );
    assert!(unneeded.is_empty(), "not needed any more: {unneeded:#?}");
}

const PAGE: &str = "\
# Results

## hit

| copied, 1 thread (ns) | median | min | max |
|---|---:|---:|---:|
| umemcg | 315.8 | 300.0 | 322.6 |
| umemcg: pin | 569.6 | 538.6 | 586.0 |

* of a plain copy 0.73× ≤ 1.15× reached

| copied, 2 threads (ns) | median | min | max |
|---|---:|---:|---:|
| umemcg, 80.95 % hits | 711020 | 1.0 | 2.0 |

| ms | ours | theirs | min – max | |
|---|---:|---:|---:|---|
| a writer: time | 16.3 | 594.2 | 14.9 – 20.1 |  |

## fuse

| copied, 1 thread (ns) | median | min | max |
|---|---:|---:|---:|
| umemcg | 9.0 | 9.0 | 9.0 |
";

/// Returns the problems of a document with one link.
fn problems(quoted: &str, target: &str) -> Vec<String> {
    with_figures_of(PAGE, &format!("Takes [{quoted}][x].\n\n[x]: results.md#{target}\n")).1
}

#[test]
fn a_figure_is_found_by_its_section_table_and_row() {
    for (quoted, target) in [
        ("315.8 ns", r#"hit "copied, 1 thread > umemcg""#),
        ("316 ns", r#"hit "copied, 1 thread > umemcg""#),
        ("320 ns", r#"hit "copied, 1 thread > umemcg""#),
        ("569.6 ns", r#"hit "umemcg: pin""#),
        ("0.73 of it", r#"hit "of a plain copy""#),
        ("80.95 %", r#"hit "copied, 2 threads > umemcg,""#),
        ("711,000\nns", r#"hit "umemcg, # % hits""#),
        ("594 ms", r#"hit "a writer: time | # |""#),
        ("9.0 ns", r#"fuse "copied, 1 thread > umemcg""#),
    ] {
        assert_eq!(problems(quoted, target), [""; 0], "{quoted}");
    }
}

#[test]
fn a_wrong_figure_is_found_and_corrected() {
    let document = "Takes [312 ns][x], not\n[9 ns][y].\n\n[x]: results.md#hit \"umemcg\"\n[y]: ../results.md#hit \"umemcg: pin\"\n";
    let (corrected, problems) = with_figures_of(PAGE, document);
    assert_eq!(corrected, document.replace("312", "316").replace("9 ns", "570 ns"));
    assert_eq!(
        problems,
        [
            "line 1: 312 should be 316 (hit > umemcg: 315.8)",
            "line 2: 9 should be 570 (hit > umemcg: pin: 569.6)"
        ]
    );
    assert!(with_figures_of(PAGE, &corrected).1.is_empty());
}

#[test]
fn a_corrected_figure_has_no_more_digits_than_the_page() {
    let document = "Takes [0.9×][x].\n\n[x]: results.md#hit \"of a plain copy\"\n";
    assert_eq!(with_figures_of(PAGE, document).0, document.replace("0.9", "0.73"));
}

#[test]
fn a_link_to_nothing_is_found() {
    assert_eq!(problems("316 ns", r#"hit "1 thread""#).len(), 1);
    assert_eq!(problems("316 ns", r#"storm "umemcg""#).len(), 1);
    assert_eq!(problems("316 ns", r#"hit "copied, 1 thread > nothing""#).len(), 1);
    assert_eq!(problems("about 316 ns", r#"hit "copied, 1 thread > umemcg""#).len(), 1);
    assert_eq!(with_figures_of(PAGE, "Takes 316 ns.\n\n[x]: results.md#hit \"umemcg\"\n").1.len(), 1);
}

#[test]
fn a_measured_figure_without_a_source_is_found() {
    let found = |document: &str| -> Vec<String> {
        figures_without_source(document).into_iter().map(|(line, text)| format!("{line}: {text}")).collect()
    };
    let document = "# A\n\nA hit takes 316 ns, a miss 3\nto 5.5 ms.\n\n- `umemcg-bench hit`: 7 ms\n- waits 20 ms\n\n| | 2.5 % |\n";
    assert_eq!(found(document), ["3: 316 ns", "3: 3 to 5.5 ms", "6: 7 ms", "9: 2.5 %"]);
    assert_eq!(found("# A\n\nAt commit `5f10029` on\n2026-11-28.\n\n## B\n\n1 ns\n"), ["8: 1 ns"]);
    assert_eq!(found("# A\n\nAt commit `5f10029` on 2026-11.\n\n1 ns\n"), ["5: 1 ns"]);
    for fine in [
        "Version 1.5 s3fs waits 20 ms, and `2.5 ms`.\n\n```text\n1 ns\n```\n",
        "# A\n\nAt commit `5f10029` on\n2026-11-28 a hit took 316 ns.\n",
        "A hit takes [316\nns][x].\n\n[x]: results.md#hit \"umemcg 1 ns\"\n",
    ] {
        assert!(found(fine).is_empty(), "{fine:?}: {:?}", found(fine));
    }
}
