//! A C project to compile, link and run: sources with shared headers, and each with text of its
//! own.
//!
//! The headers are the working set, read again by almost every compiler; each source's own text,
//! and the object files, are read or written once. Nothing is random: the same numbers make the
//! same project.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::options::Failure;

/// The size of the project.
#[derive(Debug, Clone, Copy)]
pub struct ProjectSize {
    /// Headers, shared by all sources.
    pub nr_headers: usize,
    /// Bytes of each.
    pub header_bytes: usize,
    /// Headers included by a source.
    pub nr_included: usize,
    /// Sources.
    pub nr_sources: usize,
    /// Bytes of text included by each source alone.
    pub own_bytes: usize,
}

impl ProjectSize {
    /// Returns the bytes read more than once by the compilers.
    #[cfg(feature = "experiments")]
    pub fn shared_bytes(&self) -> usize {
        self.nr_headers * self.header_bytes
    }

    /// Returns the expected output of the program.
    #[cfg(feature = "experiments")]
    pub fn expected_output(&self) -> String {
        let sum: u64 = (0..self.nr_sources as u64)
            .map(|source| {
                let headers: u64 = self.included(source as usize).map(|header| header as u64 + 3).sum();
                source * 7 + headers
            })
            .sum();
        format!("{sum}\n")
    }

    fn included(&self, source: usize) -> impl Iterator<Item = usize> {
        // Steps that share no factor with the number of headers meet each of them once.
        let (nr, step) = (self.nr_headers, (2 * (source % 4) + 3) | 1);
        (0..self.nr_included).map(move |at| (source * 5 + at * step) % nr)
    }

    /// Writes the project into an empty directory. `nr_headers` is a power of two.
    pub fn write(&self, directory: &Path) -> Result<(), Failure> {
        assert!(self.nr_headers.is_power_of_two() && self.nr_included <= self.nr_headers);
        let put = |name: String, text: &str| {
            fs::write(directory.join(&name), text).map_err(Failure::at(&format!("cannot write {name}")))
        };
        for header in 0..self.nr_headers {
            let mut text =
                format!("#ifndef H{header}\n#define H{header}\n#define VALUE_{header} {}u\n", header + 3);
            pad(&mut text, self.header_bytes, header);
            text.push_str("#endif\n");
            put(format!("h{header}.h"), &text)?;
        }
        let mut main = String::from("#include <stdio.h>\n");
        let mut sum = String::from("0");
        let mut objects = String::from("main.o");
        for source in 0..self.nr_sources {
            let mut own = format!("static unsigned long own_{source}(void) {{ return {source}ul * 7; }}\n");
            pad(&mut own, self.own_bytes, source);
            put(format!("own{source}.inc"), &own)?;
            let mut text = String::new();
            let mut value = format!("own_{source}()");
            for header in self.included(source) {
                let _ = writeln!(text, "#include \"h{header}.h\"");
                let _ = write!(value, " + VALUE_{header}");
            }
            let _ = writeln!(
                text,
                "#include \"own{source}.inc\"\nunsigned long part_{source}(void) {{ return {value}; }}"
            );
            put(format!("s{source}.c"), &text)?;
            let _ = writeln!(main, "unsigned long part_{source}(void);");
            let _ = write!(sum, " + part_{source}()");
            let _ = write!(objects, " s{source}.o");
        }
        let _ = writeln!(main, "int main(void) {{ printf(\"%lu\\n\", {sum}); return 0; }}");
        put("main.c".into(), &main)?;
        put(
            "Makefile".into(),
            &format!("prog: {objects}\n\tcc -o $@ $^\n%.o: %.c\n\tcc -pipe -O0 -g -c -o $@ $<\n"),
        )
    }

    /// Removes the files made by a build.
    #[cfg(feature = "experiments")]
    pub fn clean(&self, directory: &Path) -> Result<(), Failure> {
        let made = (0..self.nr_sources).map(|source| format!("s{source}.o"));
        for name in made.chain(["main.o".into(), "prog".into()]) {
            fs::remove_file(directory.join(&name)).map_err(Failure::at(&format!("cannot remove {name}")))?;
        }
        Ok(())
    }
}

/// The number of paragraphs of comment for each declaration: the bytes read count here, not the
/// work of the compiler.
const PARAGRAPHS: usize = 9;

/// Declarations and comments, as in headers of a grown program, up to `bytes`.
fn pad(text: &mut String, bytes: usize, seed: usize) {
    let mut line = 0;
    while text.len() < bytes {
        let _ = writeln!(
            text,
            "/* {seed}.{line}: what the function below expects of its caller, and what it gives back; which of its\n \
             * arguments may be null, which function frees what, and which lock is held meanwhile. See the notes at the end.\n \
             * It has been so since the first version; callers rely on it, and some of them on its faults, too. */"
        );
        if line % PARAGRAPHS == 0 {
            let _ = writeln!(text, "extern int declared_{seed}_{line}(int first, const char *second);");
        }
        line += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_includes_different_headers_and_all_are_included() {
        let size =
            ProjectSize { nr_headers: 16, header_bytes: 300, nr_included: 6, nr_sources: 20, own_bytes: 100 };
        let mut all = std::collections::BTreeSet::new();
        for source in 0..size.nr_sources {
            let one: std::collections::BTreeSet<_> = size.included(source).collect();
            assert_eq!(one.len(), size.nr_included, "{source}");
            all.extend(one);
        }
        assert_eq!(all.len(), size.nr_headers);
    }
}
