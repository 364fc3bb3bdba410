//! The content of the page of one group: all lines of `umemcg.stat`, events, pressure, and objects.

use crate::group_sample::GroupSample;

/// The most kinds of objects shown.
const NR_OBJECTS: usize = 12;

/// The files of one group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    /// Its numbers, with all lines of `umemcg.stat`.
    pub sample: GroupSample,
    /// The names and counts of `memory.events`; empty for the root.
    pub events: Vec<(String, u64)>,
    /// The lines of `memory.pressure`.
    pub pressure: Vec<Pressure>,
    /// The group's own objects by kind, the largest first.
    pub objects: Vec<Objects>,
}

/// The share of stall time for lack of memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    /// `some` or `full`.
    pub name: String,
    /// Percent over 10, 60 and 300 s.
    pub averages: [f64; 3],
}

/// Objects of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    /// The kind.
    pub name: String,
    /// The number of objects.
    pub nr: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Detail {
    /// Parses these texts of control files. Skips malformed lines.
    pub fn parse(sample: GroupSample, events: &str, pressure: &str, slabinfo: &str) -> Self {
        let event = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        };
        let mut objects: Vec<Objects> = slabinfo.lines().filter_map(objects_of).collect();
        objects.sort_by_key(|objects| std::cmp::Reverse(objects.bytes));
        objects.truncate(NR_OBJECTS);
        Self {
            sample,
            events: events.lines().filter_map(event).collect(),
            pressure: pressure.lines().filter_map(pressure_of).collect(),
            objects,
        }
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn pressure_of(line: &str) -> Option<Pressure> {
    let mut words = line.split(' ');
    let name = words.next()?.to_owned();
    let mut average = |prefix: &str| words.next()?.strip_prefix(prefix)?.parse().ok();
    Some(Pressure { name, averages: [average("avg10=")?, average("avg60=")?, average("avg300=")?] })
}

/// `dentry 12 3 4096`: a kind, objects, reclaimable objects, bytes.
fn objects_of(line: &str) -> Option<Objects> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| *name != "#")?.to_owned();
    let nr = words.next()?.parse().ok()?;
    let bytes = words.nth(1)?.parse().ok()?;
    (bytes > 0).then_some(Objects { name, nr, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_group_become_a_page() {
        let slabinfo =
            "# name <objects> <reclaimable> <bytes>\ndentry 3 1 300\ninode 2 2 4000\nunreclaimable 0 0 0\n";
        let pressure = "some avg10=1.50 avg60=0.25 avg300=0.00 total=77\nfull nonsense\n";
        let detail = Detail::parse(GroupSample::default(), "low 0\nmax 4\nbad\n", pressure, slabinfo);
        assert_eq!(detail.events, [("low".to_owned(), 0), ("max".to_owned(), 4)]);
        assert_eq!(detail.pressure, [Pressure { name: "some".into(), averages: [1.5, 0.25, 0.0] }]);
        let objects: Vec<_> =
            detail.objects.iter().map(|kind| (kind.name.as_str(), kind.nr, kind.bytes)).collect();
        assert_eq!(objects, [("inode", 2, 4000), ("dentry", 3, 300)]);
        assert_eq!(Detail::parse(GroupSample::default(), "", "", ""), Detail::default());
    }
}
