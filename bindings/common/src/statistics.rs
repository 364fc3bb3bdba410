//! The statistics of a group by name, in one order for every language.

use std::sync::LazyLock;

use umemcg::internal::apply_pending;
use umemcg::{EventKind, Group, StatItem, StatUnit};

type Read = fn(&Group) -> i64;

/// The figures of a group other than [`StatItem`]s and events; they come first.
const OWN: [(&str, Read); 5] = [
    ("usage_bytes", |group| signed(group.usage_bytes())),
    ("peak_bytes", |group| signed(group.peak_bytes())),
    ("max_bytes", |group| signed(group.max_bytes())),
    ("failcnt", |group| signed(group.failcnt())),
    ("metadata_bytes", |group| signed(group.metadata_bytes())),
];

/// The number of statistics of a group.
pub const NR_STATISTICS: usize = OWN.len() + StatItem::ALL.len() + EventKind::ALL.len();

/// All names, in order. Names of byte figures end in `_bytes`.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let own = OWN.iter().map(|(name, _)| (*name).to_owned());
    let items = StatItem::ALL.iter().map(|item| match item.unit() {
        StatUnit::Bytes => format!("{}_bytes", item.name()),
        _ => item.name().to_owned(),
    });
    let events = EventKind::ALL.iter().map(|kind| format!("event_{}", kind.name()));
    own.chain(items).chain(events).collect()
});

/// Returns the name of a statistic; `None` from [`NR_STATISTICS`] on.
pub fn statistic_name(index: usize) -> Option<&'static str> {
    NAMES.get(index).map(String::as_str)
}

/// Returns the statistics of a group and everything below it, in the order of [`statistic_name`].
/// No limit is [`i64::MAX`]. Takes some microseconds.
pub fn statistics(group: &Group) -> Vec<(&'static str, i64)> {
    apply_pending();
    let own = OWN.iter().map(|(_, read)| read(group));
    let items = StatItem::ALL.iter().map(|&item| group.stat_total_applied(item));
    let events = EventKind::ALL.iter().map(|&kind| signed(group.event_count(kind)));
    NAMES.iter().map(String::as_str).zip(own.chain(items).chain(events)).collect()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_statistics_have_one_name() {
        let names: std::collections::BTreeSet<_> = (0..).map_while(statistic_name).collect();
        assert_eq!(names.len(), NR_STATISTICS);
        assert!(names.contains("reserved_bytes") && names.contains("pgpgin") && names.contains("event_oom"));
    }
}
