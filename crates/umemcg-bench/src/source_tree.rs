//! A tree of source files, made up or real, and its comparable properties: the number of its files,
//! their bytes, and a checksum of names and contents.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::options::Failure;

/// Files of the made-up tree at full size.
const NR_FILES: usize = 10_000;
/// Files of a directory.
const NR_FILES_OF_DIRECTORY: usize = 25;

/// The properties of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTree {
    /// Regular files.
    pub nr_files: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Of their names below the tree and of their contents (FNV-1a).
    checksum: u64,
}

impl SourceTree {
    /// Writes a made-up tree into an empty directory: files of 1 to 60 KB, 13 KB in the mean, in
    /// directories of 25. The same scale makes the same tree.
    pub fn write(directory: &Path, scale: f64) -> Result<(), Failure> {
        let nr_files = ((NR_FILES as f64 * scale) as usize).max(NR_FILES / 20);
        for at in 0..nr_files {
            let number = at / NR_FILES_OF_DIRECTORY;
            let folder = directory.join(format!("part{}/module{number}", number / 20));
            fs::create_dir_all(&folder).map_err(Failure::at("cannot make a directory"))?;
            let text = source_text(at, length_of(at));
            fs::write(folder.join(format!("file{at}.c")), text)
                .map_err(Failure::at("cannot write a file"))?;
        }
        Ok(())
    }

    /// Reads the tree below `directory`.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let mut files = Vec::new();
        list(directory, &mut files)?;
        files.sort();
        let mut tree = Self { nr_files: files.len(), bytes: 0, checksum: 0xcbf2_9ce4_8422_2325 };
        for file in &files {
            let contents = fs::read(file).map_err(Failure::at("cannot read a file"))?;
            tree.bytes += contents.len() as u64;
            let name = file.strip_prefix(directory).unwrap_or(file);
            tree.add(name.as_os_str().as_encoded_bytes());
            tree.add(&contents);
        }
        Ok(tree)
    }

    fn add(&mut self, bytes: &[u8]) {
        let mixed = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.checksum = bytes.iter().fold(self.checksum, mixed);
    }
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(directory).map_err(Failure::at("cannot list a directory"))? {
        let entry = entry.map_err(Failure::at("cannot list a directory"))?;
        let kind = entry.file_type().map_err(Failure::at("cannot look at a file"))?;
        match kind {
            kind if kind.is_dir() => list(&entry.path(), files)?,
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the length of a file in bytes: most are short, a few are long.
fn length_of(file: usize) -> usize {
    let mixed = (file as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let part = (mixed % 1000) as f64 / 1000.0;
    1_000 + (59_000.0 * part.powi(4)) as usize + (3_000.0 * part) as usize
}

fn source_text(file: usize, len: usize) -> String {
    let mut text = String::with_capacity(len + 200);
    let mut line = 0_u64;
    while text.len() < len {
        let mixed = (file as u64 ^ (line << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let _ = writeln!(
            text,
            "static int part_{file}_{line}(int first, const char *second) {{ return first + {}; }} /* {mixed:x} */",
            mixed >> 50
        );
        line += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_told_from_one_with_another_byte() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for directory in [&one, &other] {
            SourceTree::write(directory.path(), 0.05).unwrap();
        }
        let tree = SourceTree::read(one.path()).unwrap();
        assert_eq!(tree.nr_files, NR_FILES / 20);
        assert_eq!(tree, SourceTree::read(other.path()).unwrap());
        let changed = other.path().join("part0/module0/file0.c");
        let mut bytes = fs::read(&changed).unwrap();
        bytes[10] ^= 1;
        fs::write(&changed, bytes).unwrap();
        assert_ne!(tree, SourceTree::read(other.path()).unwrap());
    }
}
