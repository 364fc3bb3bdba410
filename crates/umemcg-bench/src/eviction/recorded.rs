//! Reads of real programs: a compilation, a database and a repository, recorded with strace(1).
//!
//! Only files in the program's directory count, with their opens. A mapping counts as a read of all
//! of it; git is configured to map its packs in small pieces.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use super::traces::{Random, Trace, number};
use crate::c_project::ProjectSize;
use crate::options::Failure;
use crate::source_tree::SourceTree;

const PAGE: u64 = 4096;
/// The room, as parts of all pages.
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
/// Scans of the whole table among them.
const NR_SCANS: u64 = 4;

/// A page of a file.
type Read = (String, u64);

/// The reads and opens of a program.
#[derive(Debug, Default)]
struct Recording {
    reads: Vec<Read>,
    /// Files opened, each with the number of reads before.
    opens: Vec<(usize, String)>,
}

/// Records the programs at a part of their full size, and adds missing recordings to the notes.
pub(super) fn record(place: &Path, scale: f64, notes: &mut Vec<String>) -> Result<Vec<Trace>, Failure> {
    if Command::new("strace").arg("-V").output().is_err() {
        notes.push("no programs: strace is not installed (scripts/deps.sh --bench)".into());
        return Ok(Vec::new());
    }
    let mut traces = Vec::new();
    for (name, program) in [("compilation", compile as Program), ("sqlite", query), ("git", look_at_history)]
    {
        let dir = place.join(name);
        std::fs::create_dir(&dir).map_err(Failure::at("cannot make a directory"))?;
        let Recording { reads, opens } = program(&dir, scale)?;
        let mut places = Vec::new();
        let (requests, nr_pages) = number(reads.clone());
        let mut files = HashMap::new();
        for (request, (file, page)) in requests.iter().zip(reads) {
            if *request as usize == places.len() {
                let next = files.len() as u32;
                places.push((*files.entry(file).or_insert(next), page));
            }
        }
        let opens = opens.iter().filter_map(|(at, file)| Some((*at, *files.get(file)?)));
        let opens: Vec<(usize, u32)> = opens.collect();
        for (part, room) in ROOMS {
            let name = format!("{name}, room for {room}");
            let (requests, places, opens) = (requests.clone(), places.clone(), opens.clone());
            traces.push(Trace { name, requests, places, opens, room: nr_pages as u64 / part });
        }
    }
    Ok(traces)
}

type Program = fn(&Path, f64) -> Result<Recording, Failure>;

fn compile(dir: &Path, scale: f64) -> Result<Recording, Failure> {
    let nr_sources = (PROJECT.nr_sources as f64 * scale).ceil() as usize;
    ProjectSize { nr_sources, ..PROJECT }.write(dir)?;
    trace(dir, "make -s")
}

/// Row look-ups by key, some rows more often than others, and table scans.
fn query(dir: &Path, scale: f64) -> Result<Recording, Failure> {
    let [nr_rows, nr_queries] = [NR_ROWS, NR_QUERIES].map(|full| (full as f64 * scale).ceil() as u64);
    let rows = format!(
        "PRAGMA journal_mode=OFF; CREATE TABLE t(k INTEGER PRIMARY KEY, name TEXT, data BLOB);\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {nr_rows})\n\
         INSERT INTO t SELECT i, 'name' || (i * 7919 % {nr_rows}), zeroblob(400) FROM n;\n\
         CREATE INDEX by_name ON t(name);"
    );
    let mut queries = String::from("PRAGMA cache_size=16;\n");
    let mut random = Random::new();
    let period = nr_queries.div_ceil(NR_SCANS);
    for nr in 0..nr_queries {
        let key = (random.fraction().powi(4) * nr_rows as f64) as u64;
        let _ = match nr % 4 {
            0 => writeln!(queries, "SELECT sum(length(data)) FROM t WHERE name = 'name{key}';"),
            _ => writeln!(queries, "SELECT length(data) FROM t WHERE k = {};", key * 7919 % nr_rows),
        };
        if nr % period == period - 1 {
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

/// Checkouts and diffs in a repository of some versions. Not scaled down: in a small cache two
/// S3-FIFO differ by how they round the sizes of their queues.
fn look_at_history(dir: &Path, _scale: f64) -> Result<Recording, Failure> {
    // One thread and fixed dates, so that each recording is the same. Files as young as the index
    // are read again by each look, so they are made older.
    let git = "GIT_AUTHOR_DATE='@1700000000 +0000' GIT_COMMITTER_DATE='@1700000000 +0000' \
               git -c user.name=a -c user.email=a@b -c core.packedGitWindowSize=32k -c gc.auto=0 \
               -c grep.threads=1 -c pack.threads=1 -c index.threads=1 -c core.preloadIndex=false -c core.trustctime=false";
    let age = "find . -path ./.git -prune -o -type f -newermt 2024-01-01 -exec touch -c -d @1700000000 {} +";
    SourceTree::write(dir, 0.12)?;
    shell(dir, &format!("{git} init -q . && {git} add -A && {git} commit -qm 0"))?;
    for version in 1..12 {
        let change = format!(
            "find . -name '*.c' -not -path './.git/*' | sort | awk 'NR % 12 == {version}' | while read f; do echo '/* {version} */' >> $f; done"
        );
        shell(dir, &format!("{change}; {git} commit -qam {version}"))?;
    }
    shell(dir, &format!("{git} gc -q; {age}; {git} update-index -q --refresh"))?;
    let looks = "log --oneline -p -3; grep -c include; diff HEAD~6; checkout -q HEAD~5; AGE; status -s; log --stat; checkout -q -; AGE; \
                 blame $(git ls-files | head -1); diff HEAD~2; grep -l static; status -s; log --oneline -p -5";
    let looks = looks.split("; ").map(|look| match look {
        "AGE" => age.to_owned(),
        look => format!("{git} {look} > /dev/null"),
    });
    let looks: Vec<String> = looks.collect();
    trace(dir, &looks.join("; "))
}

fn shell(dir: &Path, script: &str) -> Result<(), Failure> {
    let status = Command::new("sh").args(["-c", script]).current_dir(dir).status();
    match status.map_err(Failure::at("cannot run a shell"))? {
        status if status.success() => Ok(()),
        status => Err(Failure::Setup(format!("{script}: {status}"))),
    }
}

/// Runs a script in a directory. Returns its reads and opens there.
fn trace(dir: &Path, script: &str) -> Result<Recording, Failure> {
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
    Ok(Calls::of(&dir.to_string_lossy(), &String::from_utf8_lossy(&text)))
}

/// Calls about files below a directory.
#[derive(Default)]
struct Calls<'a> {
    dir: &'a str,
    /// Positions in open files, by process and descriptor.
    positions: HashMap<(&'a str, &'a str), u64>,
    recording: Recording,
}

impl<'a> Calls<'a> {
    /// Returns those in the output of strace.
    fn of(dir: &'a str, text: &'a str) -> Recording {
        let mut calls = Self { dir, ..Self::default() };
        // Calls begun by a thread and interrupted by another's line.
        let mut begun: HashMap<&str, &str> = HashMap::new();
        for line in text.lines() {
            let Some((process, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if let Some(call) = call.strip_suffix(" <unfinished ...>") {
                begun.insert(process, call);
            } else if let Some((_, rest)) = call.split_once(" resumed>") {
                let _ = begun.remove(process).is_some_and(|call| calls.note(process, call, rest).is_some());
            } else {
                let _ = calls.note(process, call, call);
            }
        }
        calls.recording
    }

    /// Notes a call: how it begins, and how it ends.
    fn note(&mut self, process: &'a str, call: &'a str, end: &'a str) -> Option<()> {
        let (name, arguments) = call.split_once('(')?;
        let (last, result) = end.rsplit_once(" = ")?;
        let result_nr = result.split(|at: char| !at.is_ascii_digit()).next()?.parse::<u64>().ok()?;
        if name == "openat" {
            let fd = result.split('<').next()?;
            self.positions.insert((process, fd), 0);
            let path = self.path_of(result.split_once('<')?.1)?;
            self.recording.opens.push((self.recording.reads.len(), path.to_owned()));
            return Some(());
        }
        let (fd, path) = if name == "mmap" {
            arguments.split(", ").nth(4)?.split_once('<')?
        } else {
            arguments.split_once('<')?
        };
        let path = self.path_of(path)?;
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
            if self.recording.reads.last() != Some(&read) {
                self.recording.reads.push(read);
            }
        }
        Some(())
    }

    /// Returns the path in the directory, for a path with a bracket at its end.
    fn path_of(&self, path: &'a str) -> Option<&'a str> {
        path.split('>').next()?.strip_prefix(self.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_opens_and_reads_of_pages() {
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
        let Recording { reads, opens } = Calls::of("/d", text);
        let expected = [("/a", 0), ("/a", 1), ("/b", 2), ("/a", 1), ("/c", 1), ("/c", 2)];
        assert_eq!(reads, expected.map(|(file, page)| (file.to_owned(), page)));
        assert_eq!(opens, [(0, "/a".to_owned())]);
    }
}
