//! The answers that the writers of one group were given, and whether the backing directory keeps
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::crash::record::{CELL_BYTES, parse, whole_records};
use crate::crash::writers::NR_CELLS;

/// The acknowledged state of a file that is whole as one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    /// This generation or a later one.
    Since(u64),
    Gone,
    Anything,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct Expected {
    /// The last acknowledged record of each log.
    logs: BTreeMap<String, u64>,
    /// The acknowledged generation of each cell.
    cells: BTreeMap<String, BTreeMap<u64, u64>>,
    wholes: BTreeMap<String, Whole>,
    /// Acknowledgements in all.
    pub nr_acknowledged: u64,
}

impl Expected {
    /// Takes a line of a writer. Lines of the test runner mean nothing.
    ///
    /// # Panics
    /// When a writer ended for another reason than the daemon's death.
    pub fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words[..] {
            ["ack", name, nr] => {
                self.nr_acknowledged += 1;
                if name.starts_with("rename") || name.starts_with("names") {
                    self.wholes.insert(name.to_owned(), Whole::Since(number(nr)));
                } else {
                    self.logs.insert(name.to_owned(), number(nr));
                }
            }
            ["cell", name, cell, generation] => {
                self.nr_acknowledged += 1;
                self.cells.entry(name.to_owned()).or_default().insert(number(cell), number(generation));
            }
            ["try", name] => drop(self.wholes.insert(name.to_owned(), Whole::Anything)),
            ["gone", name] => {
                self.nr_acknowledged += 1;
                self.wholes.insert(name.to_owned(), Whole::Gone);
            }
            ["error", _, errno, ..] => {
                // The connection is aborted, or no daemon is connected any more.
                assert!(["103", "107"].contains(&errno), "{line}");
            }
            _ => {}
        }
    }

    /// Looks at every file below the backing directory of the group.
    pub fn check(&self, directory: &Path) -> Result<(), String> {
        let read = |name: &str| fs::read(directory.join(name)).unwrap_or_default();
        for (name, &acknowledged) in &self.logs {
            let (nr, end) = whole_records(name, &read(name));
            if nr <= acknowledged {
                return Err(format!(
                    "{name}: whole up to record {nr} at {end}, acknowledged up to {acknowledged}"
                ));
            }
        }
        for (name, cells) in &self.cells {
            let bytes = read(name);
            for (&cell, &acknowledged) in cells {
                let at = cell as usize * CELL_BYTES;
                let there = bytes.get(at..at + CELL_BYTES).unwrap_or_default();
                let found = parse(&format!("{name}{cell}"), there).map(|(generation, _)| generation);
                if found.is_none_or(|generation| generation < acknowledged) {
                    return Err(format!("{name}: cell {cell} has {found:x?}, acknowledged {acknowledged:x}"));
                }
            }
            assert!(cells.keys().all(|&cell| cell < NR_CELLS));
        }
        for (name, &whole) in &self.wholes {
            let found = parse(name, &read(name)).map(|(generation, _)| generation);
            let is_there = directory.join(name).exists();
            let good = match whole {
                Whole::Since(acknowledged) => found.is_some_and(|generation| generation >= acknowledged),
                Whole::Gone => !is_there,
                Whole::Anything => true,
            };
            if !good {
                return Err(format!(
                    "{name}: generation {found:x?}, there: {is_there}, acknowledged {whole:x?}"
                ));
            }
        }
        Ok(())
    }
}

#[test]
fn what_is_missing_or_old_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
    let mut expected = Expected::default();
    let log = [crate::crash::record::record("append", 0, 40), crate::crash::record::record("append", 1, 40)]
        .concat();
    write("append", &log);
    expected.note("ack append 1");
    assert_eq!(expected.check(directory.path()), Ok(()));
    write("append", &log[..79]);
    assert!(expected.check(directory.path()).is_err());
    write("append", &log);
    write("cells", &crate::crash::record::record("cells0", 5, CELL_BYTES));
    expected.note("cell cells 0 5");
    assert_eq!(expected.check(directory.path()), Ok(()));
    expected.note("cell cells 0 6");
    assert!(expected.check(directory.path()).is_err());
    expected.note("cell cells 0 5");
    expected.note("gone names1");
    assert_eq!(expected.check(directory.path()), Ok(()));
    write("names1", b"");
    assert!(expected.check(directory.path()).is_err());
    expected.note("try names1");
    assert_eq!(expected.check(directory.path()), Ok(()));
}
