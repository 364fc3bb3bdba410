//! The reports of a cluster's processes to [`LocalCluster`], one per line of standard output.
//!
//! [`LocalCluster`]: crate::LocalCluster

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Memory held by a group of an executor's engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Bytes held now.
    pub usage_bytes: u64,
    /// Peak of the bytes held since the executor started.
    pub peak_bytes: u64,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// Groups directly below.
    pub nr_children: usize,
}

impl Held {
    /// Returns whether the group has never held more than its limit.
    pub fn is_within_limit(&self) -> bool {
        self.peak_bytes <= self.limit_bytes
    }
}

/// A line of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The scheduler listens.
    Scheduler(SocketAddr),
    /// Memory held by a group of an executor; the root group is the whole engine.
    Held { executor: String, path: String, held: Held },
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(address) => write!(f, "scheduler {address}"),
            Self::Held { executor, path, held } => {
                let Held { usage_bytes, peak_bytes, limit_bytes, nr_children } = held;
                // The path comes last: names may have spaces.
                write!(f, "held {executor} {usage_bytes} {peak_bytes} {limit_bytes} {nr_children} {path}")
            }
        }
    }
}

/// The line is no report of a cluster's process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotALine;

impl FromStr for Line {
    type Err = NotALine;

    fn from_str(line: &str) -> Result<Self, NotALine> {
        let (kind, rest) = line.split_once(' ').ok_or(NotALine)?;
        if kind == "scheduler" {
            return rest.parse().map(Self::Scheduler).map_err(|_| NotALine);
        }
        let fields: Vec<&str> = rest.splitn(6, ' ').collect();
        let ("held", [executor, usage, peak, limit, nr_children, path]) = (kind, fields.as_slice()) else {
            return Err(NotALine);
        };
        let number = |field: &str| field.parse::<u64>().map_err(|_| NotALine);
        let held = Held {
            usage_bytes: number(usage)?,
            peak_bytes: number(peak)?,
            limit_bytes: number(limit)?,
            nr_children: nr_children.parse().map_err(|_| NotALine)?,
        };
        Ok(Self::Held { executor: (*executor).to_owned(), path: (*path).to_owned(), held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_told_is_understood() {
        let held = Held { usage_bytes: 1, peak_bytes: 2, limit_bytes: 3, nr_children: 4 };
        let held = Line::Held { executor: "e-1".into(), path: "/two words".into(), held };
        for line in [held, Line::Scheduler(([127, 0, 0, 1], 50050).into())] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
    }

    #[test]
    fn other_lines_are_left_out() {
        for line in
            ["", "held", "held e-1 1 2 3 4", "held e-1 1 2 x 4 /a", "scheduler 1", "lost e 1 2 3 4 /a"]
        {
            assert_eq!(line.parse::<Line>(), Err(NotALine), "{line}");
        }
    }
}
