//! The files of `/proc/PID` that the product opens. Most take a lock of the process, and a process
//! can hold that lock while it waits for the daemon.

use crate::tidy::{NO_PRODUCT, shipped_files, without_tests};

/// Files of `/proc/PID` that may be opened, each with the end of the path of the source file that
/// opens it; empty for any. The empty name is the directory itself.
const MAY_BE_OPENED: &[(&str, &str)] = &[
    ("status", ""),
    ("cgroup", ""),
    ("task", ""),
    // For control files: no program waits for their threads while another is executed in it.
    ("ns", "umemcg-fuse/src/classify/proc_files.rs"),
    // On a thread for this alone, which is left when the time is over.
    ("cwd", "umemcg-cli/src/users.rs"),
    ("root", "umemcg-cli/src/users.rs"),
    ("exe", "umemcg-cli/src/users.rs"),
    ("fd", "umemcg-cli/src/users.rs"),
    ("comm", "umemcg-cli/src/users.rs"),
    // Of the first process of the node, which has no file of a mount open.
    ("root", "umemcg-cli/src/volumes.rs"),
];

/// The names in `/proc/PID`, and in the directory of a thread.
const NAMES: &str = "auxv cgroup children clear_refs cmdline comm coredump_filter cwd environ exe \
    fd fdinfo gid_map io limits loginuid map_files maps mem mountinfo mounts \
    mountstats ns numa_maps oom_score oom_score_adj pagemap personality root \
    sched smaps smaps_rollup stack stat statm status task wchan";

fn is_name(word: &str) -> bool {
    NAMES.split(' ').any(|name| name == word)
}

/// Returns the string literals of a line, as far as they are on it.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

/// Returns the name of a process's file that a literal is the path of: below `/proc`, or below the
/// directory of a process, given by its number.
fn name_in(literal: &str) -> Option<&str> {
    let below_proc = literal.strip_prefix("/proc/");
    let (process, name) = match below_proc.unwrap_or(literal).split_once('/') {
        Some((process, rest)) => (process, rest.split('/').next().unwrap_or_default()),
        None => (below_proc?, ""),
    };
    let is_number = process.starts_with('{') || process.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !process.is_empty() && (below_proc.is_some() || is_name(name))).then_some(name)
}

/// Returns the files of processes that the shipped part of a source opens, with their lines.
fn opened(text: &str) -> Vec<(&str, &str)> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let lines: Vec<&str> = without_tests(text).map(|(_, line)| line).filter(is_code).collect();
    let of_lines = || lines.iter().flat_map(|&line| literals(line).map(move |literal| (literal, line)));
    // A source that walks the processes, or has the directory of one, joins names to it.
    let joins = of_lines().any(|(literal, _)| literal == "/proc" || name_in(literal) == Some(""));
    let name = |literal| name_in(literal).or((joins && is_name(literal)).then_some(literal));
    of_lines().filter_map(|(literal, line)| Some((name(literal)?, line))).collect()
}

#[test]
fn files_of_proc_that_wait_for_a_process_are_not_opened() {
    let mut wrong = Vec::new();
    for (file, text) in shipped_files(&NO_PRODUCT) {
        for (name, line) in opened(&text) {
            let is_known = |(known, place): &&(&str, &str)| *known == name && file.ends_with(place);
            if !MAY_BE_OPENED.iter().any(|known| is_known(&known)) {
                wrong.push(format!("{file}: {name:?} in {}", line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "add what takes no lock of the process to MAY_BE_OPENED: {wrong:#?}");
}

#[test]
fn each_way_to_name_a_file_of_a_process_is_seen() {
    let names = |text| opened(text).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names("read(format!(\"/proc/{tid}/stat\"))"), ["stat"]);
    assert_eq!(names("openat(&proc, format!(\"{tid}/maps\"))"), ["maps"]);
    assert_eq!(names("read(\"/proc/1/root\")"), ["root"]);
    assert_eq!(names("read_dir(\"/proc\")\nlink(&process.join(\"fd\"))"), ["fd"]);
    assert_eq!(names("Path::new(format!(\"/proc/{pid}\"))\n.join(\"exe\")"), ["", "exe"]);
    assert_eq!(names("read(\"/proc/self/fd\")\nread(\"/proc/meminfo\")\njoin(\"root\")"), [""; 0]);
}
