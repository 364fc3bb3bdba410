//! The pages for users, block by block: a page's `sh` blocks run in one shell, in an empty
//! directory, and what each prints is compared with the `text` block below it. In that, `…` stands
//! for any text of a line, and alone on a line for any further lines.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{PROGRAM, needs_mount, run};

/// Between the outputs of two blocks.
const END_OF_BLOCK: &str = "--- end of block ---";

/// A command, and what it prints if the page says so.
struct Step {
    script: String,
    output: Option<String>,
}

#[test]
fn experiments_with_limits_print_what_their_page_says() {
    needs_mount!();
    walk("docs/learning.md");
}

/// Each command of docs/operating.md is run: those of the walk by `make test-deb`, and the others
/// here, with files and a port of the test's own.
#[test]
fn commands_for_operators_run_as_their_page_says() {
    needs_mount!();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/operating.md")).unwrap();
    let chapters = page.split("\n## ").filter(|chapter| chapter.contains("\n```sh\n"));
    let chapters = chapters.map(|chapter| (chapter.lines().next().unwrap(), steps_of(chapter)));
    let commands: Vec<(&str, Vec<String>)> =
        chapters.map(|(name, steps)| (name, steps.into_iter().map(|step| step.script).collect())).collect();
    let names: Vec<&str> = commands.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["Before the first start", "A walk from a fresh machine", "Watching it"]);
    let (doctor, watch) = (&commands[0].1, &commands[2].1);
    assert_eq!((doctor.len(), watch.len()), (1, 1));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (serve, look) = watch[0].split_once('\n').unwrap();
    let script = format!(
        "mkdir data mnt cg
         printf '[volumes.data]\\ndir = \"data\"\\n' > node.toml
         umemcg() {{ command umemcg \"$@\" || [ \"$1 $?\" = 'doctor 1' ]; }}
         {}
         mkfifo ready; exec 3<> ready
         {serve} >&3 & read -r served <&3
         {look}
         command umemcg umount mnt",
        doctor[0]
    );
    let script =
        script.replace("/etc/umemcg/node.toml", "node.toml").replace("127.0.0.1:9470", &free.to_string());
    let ended = run(None, shell(&script, TempDir::with_prefix("umemcg-test-page-").unwrap().path()));
    let printed = ended.good();
    assert!(printed.contains("configuration    it is valid"), "{ended:?}");
    assert!(printed.contains("{\"check\":\"kernel\""), "{ended:?}");
    assert!(printed.contains("umemcg_memory_usage_bytes{group=\"/\""), "{ended:?}");
}

/// The README starts the program with this file.
#[test]
fn the_example_of_a_configuration_serves_what_it_says() {
    needs_mount!();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let script = format!(
        "cp -r {} examples; mkdir mnt cg
         mkfifo ready; exec 3<> ready
         umemcg mount --config examples/umemcg.toml mnt --control cg >&3 & read -r served <&3
         ls mnt; cmp examples/data/hello mnt/data/hello; echo kept > mnt/scratch/file; cat mnt/scratch/file
         cat cg/web/memory.limit_in_bytes cg/web/reports/memory.max
         umemcg umount mnt",
        examples.display()
    );
    let ended = run(None, shell(&script, TempDir::with_prefix("umemcg-test-page-").unwrap().path()));
    assert_eq!(ended.good(), "data\nscratch\nkept\n67108864\n16777216");
}

/// Returns a shell in a directory that finds the program under test.
fn shell(script: &str, directory: &Path) -> Command {
    let bin = Path::new(PROGRAM).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    // Whatever happens to the page, no mount and no daemon stays.
    let script = format!(
        "set -euo pipefail
         trap 'umount -l mnt cg 2>/dev/null || :; kill $(jobs -p) 2>/dev/null || :' EXIT\n{script}"
    );
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(&script).current_dir(directory).env("PATH", path);
    shell
}

/// Walks through a page of the repository, whose outputs are as shown.
#[track_caller]
fn walk(page: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let steps = steps_of(&fs::read_to_string(root.join(page)).unwrap());
    assert!(steps.iter().any(|step| step.output.is_some()), "{page} shows no output");
    let dir = TempDir::with_prefix("umemcg-test-page-").unwrap();
    let mut script = String::new();
    for step in &steps {
        script += &format!("{}\necho '{END_OF_BLOCK}'\n", step.script);
    }
    let ended = run(None, shell(&script, dir.path()));
    let printed: Vec<_> = ended.stdout.split(&format!("{END_OF_BLOCK}\n")).collect();
    assert!(ended.status.success(), "{page} fails after {} blocks: {ended:?}", printed.len() - 1);
    for (step, printed) in steps.iter().zip(printed) {
        let expected = step.output.as_deref().unwrap_or_default();
        let is_right = is_as_shown(printed, expected);
        assert!(is_right, "{page}: {}\nprints:\n{printed}\nnot:\n{expected}", step.script);
    }
}

/// Returns the blocks of a page.
fn steps_of(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let block: String =
            lines.by_ref().take_while(|line| *line != "```").map(|line| line.to_owned() + "\n").collect();
        match kind {
            "sh" => steps.push(Step { script: block, output: None }),
            "text" => steps.last_mut().expect("output of nothing").output = Some(block),
            _ => {}
        }
    }
    steps
}

/// Returns whether a text is one that a page shows.
fn is_as_shown(printed: &str, shown: &str) -> bool {
    let (mut printed, mut shown) = (printed.lines(), shown.lines());
    loop {
        match (shown.next(), printed.next()) {
            (None, None) => return true,
            (Some("…"), _) => {
                // What follows it is the end of the text.
                let rest: Vec<_> = shown.collect();
                let left: Vec<_> = printed.collect();
                let ending = left.len().checked_sub(rest.len()).map(|from| &left[from..]);
                return ending.is_some_and(|ending| {
                    ending.iter().zip(&rest).all(|(printed, shown)| is_line_as_shown(printed, shown))
                });
            }
            (Some(shown), Some(printed)) if is_line_as_shown(printed, shown) => {}
            _ => return false,
        }
    }
}

fn is_line_as_shown(printed: &str, shown: &str) -> bool {
    match shown.split_once('…') {
        None => printed == shown,
        Some((start, end)) => {
            printed.len() >= start.len() + end.len() && printed.starts_with(start) && printed.ends_with(end)
        }
    }
}

#[test]
fn other_output_than_the_page_shows_is_noticed() {
    let shown = "a …\n…\nend\n";
    assert!(is_as_shown("a 1\nx\ny\nend\n", shown));
    assert!(is_as_shown("a 1\nx\nend\n", shown));
    for other in ["b 1\nx\nend\n", "a 1\nx\nfin\n", "a 1\n", ""] {
        assert!(!is_as_shown(other, shown), "{other}");
    }
    assert!(!is_as_shown("a\nb\n", "a\n") && !is_as_shown("a\n", "a\nb\n"));
}
