//! The part of the house style that a machine can check, over the whole workspace: module comments,
//! file lengths, the layer table, explained dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use umemcg_tidy::{FileGraph, functions_in};

use crate::root;

/// Longest file without an entry in [`LONG_FILES`].
const MAX_LINES: usize = 600;

/// Files that are longer, with the length that they may not exceed. A ratchet: entries shrink or
/// go, and a new one needs a reason in its commit.
const LONG_FILES: &[(&str, usize)] = &[];

/// Longest line of a comment, in characters. Table rows and diagrams may be longer.
const COMMENT_COLUMNS: usize = 100;

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

pub(crate) fn rust_files() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    files_below(&root.join("crates"), "rs", &mut found);
    for other in ["fuzz", "bindings", "python"] {
        files_below(&root.join(other), "rs", &mut found);
    }
    assert!(found.len() > 20, "the sources are not where they should be");
    found.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// Programs for a developer's machine.
pub(crate) const NO_PRODUCT: [&str; 4] =
    ["crates/umemcg-bench/", "crates/umemcg-generate/", "crates/umemcg-tidy/", "fuzz/"];

/// The sources that ship, but for those below the `free` places. Unit tests are at their ends.
pub(crate) fn shipped_files(free: &[&str]) -> Vec<(String, String)> {
    const TESTS: [&str; 2] = ["/testing.rs", "/tests.rs"];
    let ships = |name: &str| {
        let is_test = TESTS.iter().any(|test| name.ends_with(test));
        name.contains("/src/") && !is_test && !free.iter().any(|free| name.starts_with(free))
    };
    rust_files().into_iter().filter(|(name, _)| ships(name)).collect()
}

/// The documents, by their paths.
fn documents() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    files_below(&root.join("docs"), "md", &mut found);
    let top = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    found.extend(top.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    found.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The section of what a crate needs on Linux only.
const LINUX_DEPENDENCIES: &str = r#"target."cfg(target_os = \"linux\")".dependencies"#;

/// The `umemcg-…` and third-party dependencies of each crate, from the manifests: ordinary ones,
/// then all.
fn dependencies() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let mut crates = BTreeMap::new();
    let below_crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["fuzz", "bindings/c", "bindings/common", "python"].map(|name| root().join(name));
    for directory in below_crates.chain(others) {
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
                    "dependencies" | LINUX_DEPENDENCIES => {
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

/// A module with files of its own is `name/mod.rs`, never `name.rs` beside `name/`.
#[test]
fn modules_with_files_are_directories_with_a_mod_rs() {
    let files = rust_files();
    let is_beside = |directory: &str| files.iter().any(|(name, _)| name.starts_with(directory));
    let wrong: Vec<&String> = files
        .iter()
        .map(|(name, _)| name)
        .filter(|name| is_beside(&format!("{}/", name.trim_end_matches(".rs"))))
        .collect();
    assert!(wrong.is_empty(), "move to NAME/mod.rs: {wrong:#?}");
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

/// Longest function of the product without an entry in [`LONG_FUNCTIONS`].
const MAX_FUNCTION_LINES: usize = 60;

/// Functions that are longer, and may stay so: tables in the form of a `match`, one row for each
/// case, with no other statement that could be taken out. A new one needs a reason in its commit.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    // A row for each opcode of the protocol: what its body holds.
    ("crates/umemcg-fuse/src/wire/request.rs", "parse"),
];

#[test]
fn functions_fit_on_a_screen() {
    const TESTS: [&str; 2] = ["/testing.rs", "/tests.rs"];
    let (mut wrong, mut nr_known) = (Vec::new(), 0);
    for (name, text) in rust_files() {
        if !name.contains("/src/") || TESTS.iter().any(|test| name.ends_with(test)) {
            continue;
        }
        let nr_shipped_lines = without_tests(&text).count();
        for function in functions_in(&text) {
            let is_known = LONG_FUNCTIONS.contains(&(name.as_str(), function.name.as_str()));
            let is_long =
                function.nr_lines() > MAX_FUNCTION_LINES && *function.lines.end() <= nr_shipped_lines;
            nr_known += usize::from(is_long && is_known);
            if is_long && !is_known {
                wrong.push(format!("{name}: {} has {} lines", function.name, function.nr_lines()));
            }
        }
    }
    assert!(wrong.is_empty(), "longer than {MAX_FUNCTION_LINES} lines: {wrong:#?}");
    assert_eq!(nr_known, LONG_FUNCTIONS.len(), "an entry of LONG_FUNCTIONS is not needed any more");
}

/// Most crates have none, and to look for them in each costs a build of its documentation.
#[test]
fn a_crate_with_examples_has_them_run() {
    const KINDS: [&str; 5] = ["", "rust", "no_run", "should_panic", "compile_fail"];
    let mut nr_run = 0;
    for (name, text) in rust_files() {
        let Some((package, _)) = name.split_once("/src/") else { continue };
        let manifest = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let fences = text.lines().filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("/// ```").or_else(|| line.strip_prefix("//! ```"))
        });
        // Each second one closes a block.
        let nr = fences.step_by(2).filter(|kind| KINDS.contains(kind)).count();
        assert!(nr == 0 || !manifest.contains("doctest = false"), "{name} has {nr} examples that do not run");
        nr_run += nr;
    }
    assert!(nr_run > 10, "{nr_run}");
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

/// The part of a file that ships: its unit tests are at its end.
pub(crate) fn without_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_end =
        |line: &str| line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test");
    let mut lines = text.lines().enumerate().peekable();
    std::iter::from_fn(move || {
        let (at, line) = lines.next()?;
        let ends = is_end(line) && lines.peek().is_some_and(|(_, next)| next.starts_with("mod tests"));
        (!ends).then_some((at + 1, line))
    })
}

/// Locks and condition variables come from `umemcg_base::locks`, where each has a rank or is a
/// leaf.
#[test]
fn every_lock_of_the_product_has_a_rank() {
    // A boundary to another language takes its own locks before it calls the engine, for a few
    // instructions, and none around a call.
    const FREE: [&str; 5] = ["crates/umemcg-base/", "crates/umemcg-bench/", "fuzz/", "bindings/", "python/"];
    let mut wrong = Vec::new();
    for (name, text) in shipped_files(&FREE) {
        let code = without_tests(&text).filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (at, line) in code {
            let words = || line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            let is_bare = words().any(|word| ["Mutex", "RwLock", "parking_lot"].contains(&word))
                || (line.contains("std::sync") && words().any(|word| ["Condvar", "Barrier"].contains(&word)));
            if is_bare {
                wrong.push(format!("{name}:{at}: {}", line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "locks without a rank, see LOCKING.md: {wrong:#?}");
}

/// A row of DEPENDENCIES.md is "| `toml` | cli | … |": the crate, and the crates that ship with it.
#[test]
fn every_dependency_is_explained() {
    let explained = fs::read_to_string(root().join("DEPENDENCIES.md")).unwrap();
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, (ordinary, all)) in dependencies() {
        let short = name.strip_prefix("umemcg-").unwrap_or(&name);
        for dependency in all.into_iter().filter(|name| !name.starts_with("umemcg")) {
            let ships = ordinary.contains(&dependency);
            used.entry(dependency).or_default().extend(ships.then(|| short.to_owned()));
        }
    }
    let told: BTreeMap<String, BTreeSet<String>> = explained
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(name, rest)| {
            let users = rest.split('|').next().unwrap().split(',').map(str::trim);
            let crates = users.filter(|user| !["tests", "models", "fuzzing", "build"].contains(user));
            (name.to_owned(), crates.map(str::to_owned).collect())
        })
        .collect();
    let wrong: Vec<_> = used
        .keys()
        .chain(told.keys())
        .filter(|name| used.get(*name) != told.get(*name))
        .map(|name| (name, used.get(name), told.get(name)))
        .collect();
    assert!(wrong.is_empty(), "(crate, used by, used by in DEPENDENCIES.md): {wrong:#?}");
}

/// A crate has what a registry asks for, or says that it is for this workspace only.
#[test]
fn crates_are_ready_to_publish_or_marked_as_private() {
    const KEYS: [&str; 6] =
        ["description", "repository", "keywords", "categories", "readme", "[package.metadata.docs.rs]"];
    const PUBLIC: [&str; 2] = ["umemcg", "umemcg-cli"];
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        if manifest.contains("\npublish = false\n") {
            continue;
        }
        for key in KEYS.into_iter().filter(|key| !manifest.contains(&format!("\n{key}"))) {
            wrong.push(format!("the manifest of {name} has no {key}"));
        }
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            if fs::read(directory.join(licence)).ok() != fs::read(root().join(licence)).ok() {
                wrong.push(format!("{name} has no {licence}, or another one than the repository"));
            }
        }
        let readme = fs::read_to_string(directory.join("README.md")).unwrap_or_default();
        let is_marked = [&manifest, &readme].iter().all(|text| text.contains("an internal part of"));
        if is_marked == PUBLIC.contains(&name.as_str()) {
            wrong.push(format!("{name}: internal crates, and no others, say so in description and README"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The table in ARCHITECTURE.md has a row for each crate:
/// `| umemcg-cache | umemcg-base, umemcg-group | … |`.
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

/// Returns the anchors of a document's headings, as web sites that show Markdown make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let letters = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |letter: &char| letter.is_alphanumeric() || ['_', '-', ' '].contains(letter);
    letters.map(|line| line.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn documents_name_only_files_and_jobs_that_exist() {
    let root = root();
    let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let document = root.join(&name);
        let beside = document.parent().unwrap();
        // Links to files of the repository.
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if path.is_empty() && !anchors(&text).contains(anchor) {
                wrong.push(format!("{name} links to #{anchor}, which it does not have"));
            }
            if !path.is_empty() && !path.contains("://") && !beside.join(path).exists() {
                wrong.push(format!("{name} links to {path}, which does not exist"));
            }
        }
        // Sources by their path.
        for path in text.split("`crates/").skip(1).filter_map(|rest| rest.split('`').next()) {
            if !root.join("crates").join(path).exists() {
                wrong.push(format!("{name} names crates/{path}, which does not exist"));
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

/// `kernel-semantics` §2.3 in a source is a heading `### 2.3 …` of docs/kernel-semantics.md, and a
/// mail that is named has a row in docs/background.md.
#[test]
fn every_cited_section_and_mail_exists() {
    let read = |name: &str| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let (semantics, background) = (read("kernel-semantics.md"), read("background.md"));
    let sections: BTreeSet<&str> = semantics
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter_map(|heading| heading.split(' ').next())
        .collect();
    let mails: BTreeSet<&str> = background
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|row| row.split(' ').next())
        .filter(|name| name.contains('-'))
        .collect();
    assert_eq!((sections.is_empty(), mails.len()), (false, 5));
    let mut wrong = Vec::new();
    for (name, text) in rust_files().into_iter().filter(|(name, _)| !name.contains("umemcg-tidy")) {
        for cited in text.lines().filter(|line| line.contains("kernel-semantics`")).flat_map(|line| {
            line.split('§').skip(1).filter_map(|rest| rest.split([')', ',', ' ', ':', ';']).next())
        }) {
            let cited = cited.trim_end_matches('.');
            if !sections.contains(cited) {
                wrong.push(format!("{name} cites kernel-semantics §{cited}"));
            }
        }
        for cited in text.split("(mail ").skip(1).filter_map(|rest| rest.split([')', ',', ' ']).next()) {
            if !mails.contains(cited) {
                wrong.push(format!("{name} names the mail {cited}"));
            }
        }
    }
    assert!(wrong.is_empty(), "without a section or row: {wrong:#?}");
}

/// Earlier mechanisms, for benchmarks, are behind one seam (`umemcg_reclaim::mechanism`).
#[test]
fn no_product_file_knows_the_baseline_but_the_seam() {
    let at_home = ["crates/umemcg-reclaim/src/lib.rs", "crates/umemcg-reclaim/src/baseline/"];
    for (file, text) in rust_files() {
        let is_product = file.contains("/src/") && !file.starts_with("crates/umemcg-bench/");
        if is_product && !at_home.iter().any(|home| file.starts_with(home)) {
            let word = ["feature = \"", "baseline\""].concat();
            assert!(!text.contains(&word), "{file} asks whether the baseline is built");
        }
    }
}

#[test]
fn comments_are_wrapped_at_one_hundred_columns() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files() {
        for (line, number) in text.lines().zip(1..) {
            let comment = line.trim_start();
            let text = comment.trim_start_matches(['/', '!', ' ']);
            let is_drawn = text.starts_with('|')
                || text.contains("   ")
                || text.contains("──")
                || text.contains("--------");
            if comment.starts_with("//") && !is_drawn && line.chars().count() > COMMENT_COLUMNS {
                wrong.push(format!("{file}:{number}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Pronouns that hide the actor of a sentence.
const HIDDEN_ACTORS: [&str; 9] =
    ["who", "whom", "whoever", "nobody", "somebody", "someone", "anybody", "everybody", "everyone"];

/// Files that have such sentences and names. A ratchet.
const UNNAMED: &[&str] = &[];

/// Longest name of a function, a test in particular.
const MAX_NAME: usize = 60;

fn hides_its_actor(words: &str) -> bool {
    words
        .split(|letter: char| !letter.is_alphanumeric())
        .any(|word| HIDDEN_ACTORS.contains(&&*word.to_ascii_lowercase()))
}

/// The parts of a line that are prose, not code.
fn outside_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn sentences_name_their_actors() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files().into_iter().filter(|(file, _)| !UNNAMED.contains(&&**file)) {
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim_start();
            if line.starts_with("//") && hides_its_actor(&outside_code(line)) {
                wrong.push(format!("{file}:{number}: {line}"));
            }
        }
    }
    for (file, text) in documents() {
        let mut is_code = false;
        for (line, number) in text.lines().zip(1..) {
            is_code ^= line.starts_with("```");
            if !is_code && hides_its_actor(&outside_code(line)) {
                wrong.push(format!("{file}:{number}: {line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "name the thread, group or process: {wrong:#?}");
}

#[test]
fn names_of_functions_are_short_and_name_their_actors() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files().into_iter().filter(|(file, _)| !UNNAMED.contains(&&**file)) {
        for rest in text.split("fn ").skip(1) {
            let name = rest.split(['(', '<', ' ']).next().unwrap_or_default();
            if name.len() > MAX_NAME || hides_its_actor(&name.replace('_', " ")) {
                wrong.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "longer than {MAX_NAME} characters, or without an actor: {wrong:#?}");
}

#[test]
fn files_of_a_crate_use_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        let graph = FileGraph::read(&directory.join("src"));
        for circle in graph.circles() {
            let ties = circle.iter().flat_map(|file| {
                graph.edges[file].intersection(&circle).map(move |used| format!("{file} -> {used}"))
            });
            wrong.push(format!("{name}: {}", ties.collect::<Vec<_>>().join(", ")));
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn methods_of_a_type_stand_in_its_file_or_folder() {
    let mut wrong = BTreeMap::<String, BTreeSet<String>>::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        for methods in FileGraph::read(&directory.join("src")).impls {
            if !methods.is_at_home() {
                let spread = format!("{name} {}::{}", methods.declared_in, methods.type_name);
                wrong.entry(spread).or_default().insert(methods.file);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
