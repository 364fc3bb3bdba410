//! The layout of a terminal by lines. On a small terminal, the least important lines are left out.

/// The lines of a terminal by their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The line of the title.
    pub title: Option<u16>,
    /// The line of the pool's figures.
    pub summary: Option<u16>,
    /// The line of the headings of columns.
    pub headings: Option<u16>,
    /// The first line of the page itself.
    pub body: u16,
    /// The number of its lines.
    pub nr_body: u16,
    /// The line of the keys.
    pub footer: Option<u16>,
}

impl Layout {
    /// Returns the layout of a terminal with `height` lines.
    pub fn of(height: u16) -> Self {
        let mut next = 0;
        let mut line = |height_min: u16| {
            (height >= height_min).then(|| {
                next += 1;
                next - 1
            })
        };
        let (title, summary, headings) = (line(2), line(8), line(4));
        let footer = (height >= 3).then(|| height - 1);
        let nr_body = height - next - u16::from(footer.is_some());
        Self { title, summary, headings, body: next, nr_body, footer }
    }

    /// Returns the number of lines of the page.
    pub fn nr_lines(self) -> usize {
        usize::from(self.nr_body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_terminal_shows_one_thing() {
        for height in 0..60 {
            let layout = Layout::of(height);
            let single = [layout.title, layout.summary, layout.headings, layout.footer];
            let mut lines: Vec<u16> = single.into_iter().flatten().collect();
            lines.extend(layout.body..layout.body + layout.nr_body);
            lines.sort_unstable();
            assert_eq!(lines, (0..height).collect::<Vec<_>>(), "{height}");
            assert!(height == 0 || layout.nr_body > 0, "{height}: a page has a line");
        }
        assert_eq!(Layout::of(5).nr_body, 2);
    }
}
