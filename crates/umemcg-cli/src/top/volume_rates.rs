//! The volumes of a daemon between two listings.

use std::collections::HashMap;
use std::time::Instant;

use crate::endpoint::{VolumeRow, VolumeSource};
use crate::stores::StoreState;

/// The request rates of a store, each second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StoreRates {
    /// Requests for bytes.
    pub gets: f64,
    /// Requests for attributes and listings.
    pub looks: f64,
    /// Requests to store an object or a part of it.
    pub puts: f64,
    /// Bytes received.
    pub read_bytes: f64,
    /// Bytes accepted by the store.
    pub written_bytes: f64,
}

impl StoreRates {
    fn between(before: &StoreState, now: &StoreState, seconds: f64) -> Self {
        // A volume added again counts from zero.
        let rate =
            |figure: fn(&StoreState) -> u64| figure(now).saturating_sub(figure(before)) as f64 / seconds;
        Self {
            gets: rate(|state| state.gets),
            looks: rate(|state| state.heads + state.lists),
            puts: rate(|state| state.puts),
            read_bytes: rate(|state| state.read_bytes),
            written_bytes: rate(|state| state.written_bytes),
        }
    }
}

/// A volume, and the request rates of its store.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// The volume.
    pub row: VolumeRow,
    /// The rates of its store; 0 before the second listing.
    pub rates: StoreRates,
}

impl Volume {
    /// Returns the state of its store; `None` if it has none.
    pub fn store(&self) -> Option<&StoreState> {
        store_of(&self.row)
    }

    /// Returns its rank in the list: volumes in trouble first, then the busiest stores.
    fn rank(&self) -> (bool, f64) {
        let trouble = self.store().is_some_and(|state| state.trouble.is_some());
        (trouble, self.rates.read_bytes + self.rates.written_bytes + self.rates.gets + self.rates.puts)
    }
}

fn store_of(row: &VolumeRow) -> Option<&StoreState> {
    match &row.data {
        VolumeSource::Store(store) => store.state.as_ref(),
        VolumeSource::Dir { .. } | VolumeSource::Tmpfs { .. } => None,
    }
}

/// The volumes of the last listing.
#[derive(Debug, Default)]
pub struct Volumes {
    /// The volumes, in trouble first, then the busiest.
    pub list: Vec<Volume>,
    at: Option<Instant>,
}

impl Volumes {
    /// Takes a listing.
    pub fn take(&mut self, at: Instant, rows: Vec<VolumeRow>) {
        let seconds = self.at.map_or(0.0, |before| at.saturating_duration_since(before).as_secs_f64());
        let before: HashMap<&str, &StoreState> =
            self.list.iter().filter_map(|volume| Some((volume.row.name.as_str(), volume.store()?))).collect();
        let rates = |row: &VolumeRow| match (before.get(row.name.as_str()), store_of(row)) {
            (Some(before), Some(now)) if seconds > 0.0 => StoreRates::between(before, now, seconds),
            _ => StoreRates::default(),
        };
        let rates: Vec<_> = rows.iter().map(rates).collect();
        let mut list: Vec<_> =
            rows.into_iter().zip(rates).map(|(row, rates)| Volume { row, rates }).collect();
        list.sort_by(|a, b| {
            let ((in_trouble, busy), (other_trouble, other_busy)) = (a.rank(), b.rank());
            let by_rank = other_trouble.cmp(&in_trouble).then(other_busy.total_cmp(&busy));
            by_rank.then_with(|| a.row.name.cmp(&b.row.name))
        });
        (self.list, self.at) = (list, Some(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn store(name: &str, gets: u64, written_bytes: u64, trouble: Option<&str>) -> VolumeRow {
        let json = serde_json::json!({"name": name, "nr_open": 0, "data": {"store": {"url": "s3://b/p", "state": {
            "trouble": trouble, "gets": gets, "heads": 0, "lists": 0, "read_bytes": 0, "refusals": 0, "failures": 0,
            "written_bytes": written_bytes, "hidden_keys": [], "has_more_hidden": false}}}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_stores_rates_are_differences_and_never_negative() {
        let mut volumes = Volumes::default();
        let start = Instant::now();
        volumes.take(start, vec![store("a", 100, 0, None), store("b", 7, 9, None)]);
        assert_eq!(volumes.list[0].rates, StoreRates::default(), "the first listing has no rates");
        let later = start + Duration::from_secs(2);
        volumes.take(
            later,
            vec![store("a", 110, 0, None), store("b", 3, 2009, None), store("new", 50, 0, None)],
        );
        let seen: Vec<_> = volumes
            .list
            .iter()
            .map(|volume| (volume.row.name.as_str(), volume.rates.gets, volume.rates.written_bytes))
            .collect();
        assert_eq!(seen, [("b", 0.0, 1000.0), ("a", 5.0, 0.0), ("new", 0.0, 0.0)]);
    }

    #[test]
    fn volumes_in_trouble_come_first() {
        let mut volumes = Volumes::default();
        volumes.take(Instant::now(), vec![store("a", 0, 0, None), store("b", 0, 0, Some("no answer"))]);
        assert_eq!(volumes.list[0].row.name, "b");
    }
}
