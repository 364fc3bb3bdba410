//! What programs read: a compilation, a database and a repository, recorded with strace(1).
//!
//! Only files that the program finds in its directory count. A mapping counts as a read of all of
//! it; git is told to map its packs in small pieces.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use super::traces::{Random, Trace, number};
use crate::c_project::ProjectSize;
use crate::options::Failure;
use crate::source_tree::SourceTree;

const PAGE: u64 = 4096;
/// The parts of all pages that there is room for.
const ROOMS: [(u64, &str); 2] = [(2, "a half"), (4, "a quarter")];
const PROJECT: ProjectSize = ProjectSize {
    nr_headers: 256,
    header_bytes: 32 << 10,
    nr_included: 40,
    nr_sources: 120,
    own_bytes: 8 << 10,
};
const NR_ROWS: u64 = 40_000;
const NR_QUERIES: u64 = 10_000;

/// A page of a file.
type Read = (String, u64);

/// Records the programs, and adds to the notes what is not recorded.
pub(super) fn record(place: &Path, notes: &mut Vec<String>) -> Result<Vec<Trace>, Failure> {
    if Command::new("strace").arg("-V").output().is_err() {
        notes.push("no programs: strace is not installed (scripts/deps.sh --bench)".into());
        return Ok(Vec::new());
    }
    let mut traces = Vec::new();
    for (name, program) in [("compilation", compile as Program), ("sqlite", query), ("git", look_at_history)]
    {
        let dir = place.join(name);
        std::fs::create_dir(&dir).map_err(Failure::at("cannot make a directory"))?;
        let reads = program(&dir)?;
        let mut places = Vec::new();
        let (requests, nr_pages) = number(reads.clone());
        let mut files = HashMap::new();
        for (request, (file, page)) in requests.iter().zip(reads) {
            if *request as usize == places.len() {
                let next = files.len() as u32;
                places.push((*files.entry(file).or_insert(next), page));
            }
        }
        for (part, room) in ROOMS {
            let name = format!("{name}, room for {room}");
            let (requests, places) = (requests.clone(), places.clone());
            traces.push(Trace { name, requests, places, room: nr_pages as u64 / part });
        }
    }
    Ok(traces)
}

type Program = fn(&Path) -> Result<Vec<Read>, Failure>;

fn compile(dir: &Path) -> Result<Vec<Read>, Failure> {
    PROJECT.write(dir)?;
    trace(dir, "make -s")
}

/// Rows that are looked up by key, some more often than others, and tables that are scanned.
fn query(dir: &Path) -> Result<Vec<Read>, Failure> {
    let rows = format!(
        "PRAGMA journal_mode=OFF; CREATE TABLE t(k INTEGER PRIMARY KEY, name TEXT, data BLOB);\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {NR_ROWS})\n\
         INSERT INTO t SELECT i, 'name' || (i * 7919 % {NR_ROWS}), zeroblob(400) FROM n;\n\
         CREATE INDEX by_name ON t(name);"
    );
    let mut queries = String::from("PRAGMA cache_size=16;\n");
    let mut random = Random::new();
    for nr in 0..NR_QUERIES {
        let key = (random.fraction().powi(4) * NR_ROWS as f64) as u64;
        let _ = match nr % 4 {
            0 => writeln!(queries, "SELECT sum(length(data)) FROM t WHERE name = 'name{key}';"),
            _ => writeln!(queries, "SELECT length(data) FROM t WHERE k = {};", key * 7919 % NR_ROWS),
        };
        if nr % 2500 == 2499 {
            queries.push_str("SELECT sum(length(data)) FROM t;\n");
        }
    }
    let put = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).map_err(Failure::at("cannot write the queries"))
    };
    put("rows.sql", &rows)?;
    put("queries.sql", &queries)?;
    shell(dir, "sqlite3 db < rows.sql > /dev/null")?;
    trace(dir, "sqlite3 db < queries.sql > /dev/null")
}

/// A repository of some versions, whose states and differences are looked at.
fn look_at_history(dir: &Path) -> Result<Vec<Read>, Failure> {
    let git = "git -c user.name=a -c user.email=a@b -c core.packedGitWindowSize=32k -c gc.auto=0";
    SourceTree::write(dir, 0.12)?;
    shell(dir, &format!("{git} init -q . && {git} add -A && {git} commit -qm 0"))?;
    for version in 1..12 {
        let change = format!(
            "find . -name '*.c' -not -path './.git/*' | sort | awk 'NR % 12 == {version}' | while read f; do echo '/* {version} */' >> $f; done"
        );
        shell(dir, &format!("{change}; {git} commit -qam {version}"))?;
    }
    shell(dir, &format!("{git} gc -q"))?;
    let looks = "log --oneline -p -3; grep -c include; diff HEAD~6; checkout -q HEAD~5; status -s; log --stat; checkout -q -; \
                 blame $(git ls-files | head -1); diff HEAD~2; grep -l static; status -s; log --oneline -p -5";
    let looks: Vec<String> = looks.split("; ").map(|look| format!("{git} {look} > /dev/null")).collect();
    trace(dir, &looks.join("; "))
}

fn shell(dir: &Path, script: &str) -> Result<(), Failure> {
    let status = Command::new("sh").args(["-c", script]).current_dir(dir).status();
    match status.map_err(Failure::at("cannot run a shell"))? {
        status if status.success() => Ok(()),
        status => Err(Failure::Setup(format!("{script}: {status}"))),
    }
}

/// Runs a script in a directory. Returns what it reads there.
fn trace(dir: &Path, script: &str) -> Result<Vec<Read>, Failure> {
    let calls = dir.with_extension("calls");
    let status = Command::new("strace")
        .args(["-f", "-qq", "-y", "-s", "0", "-e", "trace=read,pread64,openat,lseek,mmap", "-o"])
        .arg(&calls)
        .args(["sh", "-c", script])
        .current_dir(dir)
        .status();
    if !status.map_err(Failure::at("cannot run strace"))?.success() {
        return Err(Failure::Setup(format!("{script} failed")));
    }
    let text = std::fs::read(&calls).map_err(Failure::at("cannot read what strace has written"))?;
    let dir = dir.canonicalize().map_err(Failure::at("cannot find the directory"))?;
    Ok(Reads::of(&dir.to_string_lossy(), &String::from_utf8_lossy(&text)))
}

/// Reads of files below a directory.
#[derive(Default)]
struct Reads<'a> {
    dir: &'a str,
    /// Positions in open files, by process and descriptor.
    positions: HashMap<(&'a str, &'a str), u64>,
    reads: Vec<Read>,
}

impl<'a> Reads<'a> {
    /// Returns those in the output of strace.
    fn of(dir: &'a str, text: &'a str) -> Vec<Read> {
        let mut reads = Self { dir, ..Self::default() };
        // What a thread had begun when another's call was written.
        let mut begun: HashMap<&str, &str> = HashMap::new();
        for line in text.lines() {
            let Some((process, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if let Some(call) = call.strip_suffix(" <unfinished ...>") {
                begun.insert(process, call);
            } else if let Some((_, rest)) = call.split_once(" resumed>") {
                let _ = begun.remove(process).is_some_and(|call| reads.note(process, call, rest).is_some());
            } else {
                let _ = reads.note(process, call, call);
            }
        }
        reads.reads
    }

    /// Notes a call: how it begins, and how it ends.
    fn note(&mut self, process: &'a str, call: &'a str, end: &'a str) -> Option<()> {
        let (name, arguments) = call.split_once('(')?;
        let (last, result) = end.rsplit_once(" = ")?;
        let result_nr = result.split(|at: char| !at.is_ascii_digit()).next()?.parse::<u64>().ok()?;
        if name == "openat" {
            let fd = result.split('<').next()?;
            self.positions.insert((process, fd), 0);
            return Some(());
        }
        let (fd, path) = if name == "mmap" {
            arguments.split(", ").nth(4)?.split_once('<')?
        } else {
            arguments.split_once('<')?
        };
        let path = path.split('>').next()?.strip_prefix(self.dir)?;
        let last = last.trim_end().strip_suffix(')')?.rsplit(", ").next()?;
        let at = match name {
            "pread64" => last.parse().ok()?,
            "mmap" => u64::from_str_radix(last.strip_prefix("0x").unwrap_or(last), 16).ok()?,
            "lseek" => {
                self.positions.insert((process, fd), result_nr);
                return Some(());
            }
            _ => {
                let position = self.positions.entry((process, fd)).or_default();
                *position += result_nr;
                *position - result_nr
            }
        };
        let len = if name == "mmap" { arguments.split(", ").nth(1)?.parse().ok()? } else { result_nr };
        for page in at / PAGE..(at + len).div_ceil(PAGE) {
            let read = (path.to_owned(), page);
            // Small reads in a row are one use.
            if self.reads.last() != Some(&read) {
                self.reads.push(read);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_reads_of_pages() {
        let text = "\
7 openat(AT_FDCWD</d>, \"a\", O_RDONLY) = 3</d/a>
7 read(3</d/a>, \"\"..., 5000) = 5000
7 read(3</d/a>,  <unfinished ...>
8 pread64(3</d/b>, \"\"..., 100, 8192) = 100
7 <... read resumed>\"\"..., 5000)      = 10
7 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 4</d/c>, 0x1000) = 0x7f0000000000
7 read(5</elsewhere>, \"\"..., 4096) = 4096
7 read(3</d/a>, 0x7f, 4096) = -1 EIO (Input/output error)
";
        let reads = Reads::of("/d", text);
        let expected = [("/a", 0), ("/a", 1), ("/b", 2), ("/a", 1), ("/c", 1), ("/c", 2)];
        assert_eq!(reads, expected.map(|(file, page)| (file.to_owned(), page)));
    }
}
