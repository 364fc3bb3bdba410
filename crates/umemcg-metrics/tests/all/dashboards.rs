//! The dashboard, the alerts and their explanations ask for metrics that there are.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use umemcg::{Engine, EngineConfig};
use umemcg_metrics::{
    GroupDepth, RequestDurations, StoreFigures, Surroundings, TrafficFigures, VolumeFigures, WorkFigures,
    exposition,
};

#[derive(Debug)]
struct OneBucket;

impl Surroundings for OneBucket {
    fn volumes(&self) -> Vec<VolumeFigures> {
        let get = RequestDurations { kind: "get", nr_within: vec![(0.1, 1)], nr_longer: 0, sum_seconds: 0.1 };
        let traffic =
            TrafficFigures { store: "s3://b".into(), nr_waiting: 0, nr_under_way: 0, durations: vec![get] };
        let store = StoreFigures {
            requests: vec![("get", 1)],
            read_bytes: 1,
            written_bytes: 1,
            refusals: 0,
            throttles: 0,
            throttled: std::time::Duration::ZERO,
            failures: 0,
            is_well: true,
            traffic: Some(traffic),
            work: WorkFigures::default(),
        };
        let name = "bucket".into();
        vec![VolumeFigures { name, kind: "objects", nr_open: 0, used_bytes: Some(0), store: Some(store) }]
    }

    fn version(&self) -> &'static str {
        "1"
    }
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the words of a text that look like metrics.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("umemcg_") || word.starts_with("process_")).collect()
}

#[test]
fn dashboard_alerts_and_documents_name_metrics_that_exist() {
    let engine = Engine::new(EngineConfig::new(64 << 20).pages(false)).unwrap();
    let surroundings: Arc<dyn Surroundings> = Arc::new(OneBucket);
    let text = exposition(&engine, GroupDepth::default(), &surroundings);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let there: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    for (path, nr_min) in [
        ("deploy/grafana/umemcg.json", 20),
        ("deploy/prometheus/umemcg-alerts.yml", 15),
        ("docs/operating.md", 3),
    ] {
        let text = read(path);
        let named = metrics_in(&text);
        assert!(named.len() >= nr_min, "{path}: {named:?}");
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.is_empty(), "{path} names {missing:?}");
    }
}

#[test]
fn every_alert_is_tested_and_explained() {
    let (alerts, tests, explained) = (
        read("deploy/prometheus/umemcg-alerts.yml"),
        read("deploy/prometheus/umemcg-alerts-test.yml"),
        read("docs/operating.md"),
    );
    let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("alertname: {name}\n        exp_alerts:\n")), "{name} never fires");
        assert!(tests.contains(&format!("alertname: {name}\n        exp_alerts: []")), "{name} always fires");
        assert!(explained.contains(&format!("\n### {name}\n")), "{name} is not explained");
    }
}
