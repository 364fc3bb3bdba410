//! What a machine can see of the house style, over the whole workspace: module comments, file lengths, the layer table,
//! explained dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Longest file without an entry in [`LONG_FILES`].
const MAX_LINES: usize = 600;

/// Files that are longer, with the length that they may not exceed. A ratchet: entries shrink or go, and a new one needs
/// a reason in its commit.
const LONG_FILES: &[(&str, usize)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files_below(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

fn rust_files() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    files_below(&root.join("crates"), "rs", &mut found);
    assert!(found.len() > 20, "the sources are not where they should be");
    found.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The `umemcg-…` and third-party dependencies of each crate, from the manifests: ordinary ones, then all.
fn dependencies() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let mut crates = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let directory = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(directory.join("Cargo.toml")) else { continue };
        let (mut ordinary, mut all, mut section, mut name) =
            (BTreeSet::new(), BTreeSet::new(), "", String::new());
        for line in manifest.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
            } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                let key = key.trim().split('.').next().unwrap().to_owned();
                match section {
                    "package" if key == "name" => name = value.trim().trim_matches('"').to_owned(),
                    "dependencies" => {
                        ordinary.insert(key.clone());
                        all.insert(key);
                    }
                    section if section.ends_with("dependencies") => drop(all.insert(key)),
                    _ => {}
                }
            }
        }
        crates.insert(name, (ordinary, all));
    }
    crates
}

#[test]
fn every_source_file_opens_with_what_it_is() {
    let silent: Vec<String> = rust_files()
        .into_iter()
        .filter(|(_, text)| {
            let first = text.lines().next().unwrap_or_default();
            !first.starts_with("//! ") || first.len() < 20
        })
        .map(|(name, _)| name)
        .collect();
    assert!(silent.is_empty(), "without a module comment: {silent:#?}");
}

#[test]
fn no_file_grows_beyond_what_a_reader_can_hold() {
    let mut wrong = Vec::new();
    for (name, text) in rust_files() {
        let lines = text.lines().count();
        let allowed =
            LONG_FILES.iter().find(|(long, _)| *long == name).map_or(MAX_LINES, |(_, lines)| *lines);
        if lines > allowed {
            wrong.push(format!(
                "{name} has {lines} lines, {allowed} are allowed: which noun is hiding in it?"
            ));
        }
    }
    for (name, _) in LONG_FILES {
        let lines = fs::read_to_string(root().join(name)).map_or(0, |text| text.lines().count());
        if lines <= MAX_LINES {
            wrong.push(format!("{name} has {lines} lines: take it out of LONG_FILES"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_stays_where_it_belongs() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.starts_with(root().join("crates/umemcg-arena")) {
            continue;
        }
        let top = ["lib.rs", "main.rs"]
            .map(|name| source.join(name))
            .into_iter()
            .find(|path| path.exists())
            .unwrap();
        let text = fs::read_to_string(&top).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{} does not forbid unsafe code", top.display());
    }
}

#[test]
fn every_dependency_is_explained() {
    let explained = fs::read_to_string(root().join("DEPENDENCIES.md")).unwrap();
    let used: BTreeSet<String> = dependencies()
        .into_values()
        .flat_map(|(_, all)| all)
        .filter(|name| !name.starts_with("umemcg"))
        .collect();
    let row = |line: &str| line.strip_prefix("| `")?.split('`').next().map(str::to_owned);
    let told: BTreeSet<String> = explained.lines().filter_map(row).collect();
    let untold: Vec<_> = used.difference(&told).collect();
    let unused: Vec<_> = told.difference(&used).collect();
    assert!(untold.is_empty(), "not in DEPENDENCIES.md: {untold:?}");
    assert!(unused.is_empty(), "in DEPENDENCIES.md, but no crate uses it: {unused:?}");
}

/// The table in ARCHITECTURE.md has a row for each crate: `| umemcg-cache | umemcg-base, umemcg-group | … |`.
#[test]
fn dependencies_point_down_as_the_map_says() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let names = |cell: &str| -> BTreeSet<String> {
        cell.split([',', ' ', '`']).filter(|word| word.starts_with("umemcg")).map(str::to_owned).collect()
    };
    let mut layers = BTreeMap::new();
    for line in map.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').collect();
        if let (Some(first), Some(second)) = (cells.get(1), cells.get(2))
            && let Some(name) = names(first).pop_first()
        {
            layers.entry(name).or_insert_with(|| names(second));
        }
    }
    let mut wrong = Vec::new();
    for (name, (ordinary, _)) in dependencies() {
        let Some(allowed) = layers.get(&name) else {
            wrong.push(format!("{name} has no row in the table of ARCHITECTURE.md"));
            continue;
        };
        for used in ordinary.iter().filter(|used| used.starts_with("umemcg") && !allowed.contains(*used)) {
            wrong.push(format!("{name} uses {used}, which the table does not allow"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn documents_name_only_files_and_jobs_that_exist() {
    let root = root();
    let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
    let mut wrong = Vec::new();
    for document in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        if document.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        // Links to files of the repository.
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap();
            if !path.is_empty() && !path.contains("://") && !root.join(path).exists() {
                wrong.push(format!("{name} links to {path}, which does not exist"));
            }
        }
        // Jobs in code.
        for job in text.split("`make ").skip(1).filter_map(|rest| rest.split(['`', ' ']).next()) {
            if !makefile.lines().any(|line| line.starts_with(&format!("{job}:"))) {
                wrong.push(format!("{name} names `make {job}`, which the Makefile does not have"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
