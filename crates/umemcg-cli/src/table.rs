//! Human-readable tables and sizes.

use std::fmt;

use crate::plain_text::one_line;

/// Formats a number of bytes with the largest binary unit not above it.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be rounded to 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A table of text: the first column is aligned left, the others right.
#[derive(Debug)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Creates a table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a row; missing cells stay empty. A cell is one line, even with line breaks in a name.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell).into_owned()).collect());
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nr_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..nr_columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, width) in widths.iter().copied().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                match column {
                    0 => line += &format!("{cell:<width$}"),
                    _ => line += &format!("  {cell:>width$}"),
                }
            }
            writeln!(formatter, "{}", line.trim_end())?;
            if number == 0 {
                writeln!(
                    formatter,
                    "{}",
                    "-".repeat(widths.iter().sum::<usize>() + 2 * nr_columns.saturating_sub(1))
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_get_a_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (64 << 20, "64.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["", "a", "long"]);
        table.row(["x".into(), "10".into(), "2".into()]);
        table.row(["yyy".into()]);
        assert_eq!(table.to_string(), "      a  long\n-------------\nx    10     2\nyyy\n");
    }
}
