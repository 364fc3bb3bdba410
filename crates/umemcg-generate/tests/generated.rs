//! The written pages and completions: complete, the same each time, and accepted by their readers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use umemcg_cli::definitions;

/// Returns a directory with all generated files.
fn generated() -> TempDir {
    let directory = TempDir::new().unwrap();
    umemcg_generate::generate(directory.path()).unwrap();
    directory
}

/// Returns the files below the directory by name.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in ["man", "completions"] {
        for entry in fs::read_dir(directory.join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            found.insert(format!("{part}/{name}"), fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// Runs a program. A missing program is a failure in CI, and skips the test elsewhere.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            let must_run = std::env::var_os("CI").is_some_and(|value| value == "true");
            assert!(!must_run, "{program}: {error}");
            eprintln!("skipped: {program}: {error}");
            None
        }
    }
}

/// Returns the names of the pages of all visible commands.
fn pages_of(command: &clap::Command, name: &str) -> BTreeSet<String> {
    let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
    let below = visible.flat_map(|below| pages_of(below, &format!("{name}-{}", below.get_name())));
    below.chain([name.to_owned()]).collect()
}

#[test]
fn every_command_has_a_page_and_no_hidden_one() {
    let directory = generated();
    let files = files(directory.path());
    let expected: BTreeSet<String> = pages_of(&definitions::command(), "umemcg")
        .into_iter()
        .map(|page| format!("man/{page}.1"))
        .chain(["umemcg.bash", "_umemcg", "umemcg.fish"].map(|name| format!("completions/{name}")))
        .chain(["man/umemcg.toml.5", "man/mount.fuse.umemcg.8"].map(str::to_owned))
        .collect();
    assert_eq!(files.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for part in ["mount", "csi", "volume-add"] {
        assert!(files.contains_key(&format!("man/umemcg-{part}.1")), "{part}");
    }
    for (name, text) in &files {
        assert!(!text.contains("orphan-guard"), "{name}");
        assert!(!text.contains(r"orphan\-guard"), "{name}");
    }
}

#[test]
fn every_page_has_its_sections() {
    let directory = generated();
    for (name, text) in files(directory.path()) {
        if name.ends_with(".1") {
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
                assert!(text.contains(&section_heading(section)), "{name} has no section {section}");
            }
            assert!(text.contains(" 1 \"\" \"umemcg "), "{name} has a date, or lacks its place");
            assert!(!text.contains('`'), "{name} has a backtick");
        }
    }
    let page = fs::read_to_string(directory.path().join("man/umemcg-mount.1")).unwrap();
    for expected in [section_heading("EXAMPLES"), section_heading("FILES"), r"\-\-staging".to_owned()] {
        assert!(page.contains(&expected), "{expected}");
    }
}

/// Returns the line of a section, as either renderer quotes it.
fn section_heading(name: &str) -> String {
    if name.contains(' ') { format!(".SH \"{name}\"\n") } else { format!(".SH {name}\n") }
}

/// Every page named by a page exists, or belongs to another project.
#[test]
fn pages_name_only_pages_that_exist() {
    let directory = generated();
    let files = files(directory.path());
    for (name, text) in &files {
        let named = text.lines().skip_while(|line| *line != ".SH \"SEE ALSO\"").filter_map(|line| {
            let (page, rest) = line.strip_prefix("\\fB")?.split_once("\\fR(")?;
            Some(format!("man/{}.{}", page.replace("\\-", "-"), &rest[..1]))
        });
        for page in named.filter(|page| page.starts_with("man/umemcg")) {
            assert!(files.contains_key(&page), "{name} names {page}");
        }
    }
}

#[test]
fn the_page_of_the_helper_has_examples_with_known_options() {
    let directory = generated();
    let page = fs::read_to_string(directory.path().join("man/mount.fuse.umemcg.8")).unwrap();
    let command = definitions::command();
    let mount = command.get_subcommands().find(|below| below.get_name() == "mount").unwrap();
    let mut known: BTreeSet<&str> = mount.get_arguments().filter_map(|option| option.get_long()).collect();
    known.extend(["environment", "ro", "nofail", "_netdev"]);
    let lines: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.contains(" fuse.umemcg  "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 3, "{page}");
    for fields in lines {
        assert_eq!(fields.len(), 6, "{fields:?}");
        for option in fields[3].split(',') {
            let name = option.split_once('=').map_or(option, |(name, _)| name);
            assert!(known.contains(name), "{option}");
        }
    }
}

#[test]
fn two_runs_write_the_same_bytes() {
    assert_eq!(files(generated().path()), files(generated().path()));
}

#[test]
fn groff_warns_of_nothing_in_any_page() {
    let directory = generated();
    for name in files(directory.path()).keys().filter(|name| name.starts_with("man/")) {
        let page = directory.path().join(name);
        let page = page.to_str().unwrap();
        let Some(output) = run("groff", &["-man", "-ww", "-z", "-K", "utf8", "-T", "utf8", page]) else {
            return;
        };
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
    }
}

/// Returns the keys named by the parser's message about an unknown key.
fn keys_in(message: &str) -> BTreeSet<String> {
    let (_, list) = message.split_once("expected one of ").expect(message);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_page_of_the_configuration_has_its_keys() {
    let directory = generated();
    let page = fs::read_to_string(directory.path().join("man/umemcg.toml.5")).unwrap();
    let mut known = keys_in(&definitions::check_config("x = 1").unwrap_err());
    known.retain(|key| key != "groups" && key != "volumes");
    let of_volumes = keys_in(&definitions::check_config("[volumes.a]\nx = 1").unwrap_err());
    known.extend(of_volumes);
    let told: BTreeSet<String> = page
        .split(".TP\n\\fB")
        .skip(1)
        .filter_map(|item| item.split_once("\\fR"))
        .map(|(key, _)| key.to_owned())
        .collect();
    assert_eq!(told, known);
    assert!(!page.contains('@'), "a place for a value was left empty");
}

#[test]
fn the_example_of_the_configuration_is_accepted() {
    let directory = generated();
    let page = fs::read_to_string(directory.path().join("man/umemcg.toml.5")).unwrap();
    let (_, rest) = page.split_once(".SH EXAMPLES\n.nf\n").unwrap();
    let (example, _) = rest.split_once(".fi\n").unwrap();
    definitions::check_config(example).unwrap();
}

#[test]
fn bash_completes_the_beginning_of_a_command() {
    let directory = generated();
    let script = r#"
        set -u
        source "$1"
        complete -p umemcg
        COMP_WORDS=(umemcg "$2") COMP_CWORD=1
        _umemcg umemcg "$2" umemcg
        echo "${COMPREPLY[*]}"
        COMP_WORDS=(umemcg volume r) COMP_CWORD=2
        _umemcg umemcg r volume
        echo "${COMPREPLY[*]}"
    "#;
    let completions = directory.path().join("completions/umemcg.bash");
    let Some(output) = run("bash", &["-c", script, "bash", completions.to_str().unwrap(), "mo"]) else {
        return;
    };
    let told = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].contains("_umemcg"), "{told}");
    assert_eq!(lines[1..], ["mount", "remove"], "{}", String::from_utf8_lossy(&output.stderr));
}

/// `make deps` does not bring these shells.
#[test]
fn other_shells_read_their_completions() {
    let directory = generated();
    for (shell, name) in [("zsh", "_umemcg"), ("fish", "umemcg.fish")] {
        let completions = directory.path().join("completions").join(name);
        let Ok(output) = Command::new(shell).arg("-n").arg(completions).output() else { continue };
        assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
