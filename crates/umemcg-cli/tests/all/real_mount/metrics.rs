//! Metrics of a daemon at work, as Prometheus and people get them.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Mount, Options, PROGRAM, is_mounted, needs_mount, run, until};

/// The value of a series.
fn value_of(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

/// Asks a server for a page; returns what it answers after its headers, if it has it.
fn try_ask(mut stream: impl Read + Write, path: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{path}: {error}");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{path}: {answer:?}"))?;
    if head.contains(" 200 OK") { Ok(body.to_owned()) } else { Err(format!("{path}: {head}\n{body}")) }
}

fn ask(stream: impl Read + Write, path: &str) -> String {
    try_ask(stream, path).unwrap_or_else(|why| panic!("{why}"))
}

fn scrape(socket: &Path) -> String {
    ask(UnixStream::connect(socket).unwrap(), "/metrics")
}

#[test]
fn a_scrape_and_the_control_files_say_the_same() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics");
    let address = format!("unix:{}", socket.display());
    let config = directory.path().join("umemcg.toml");
    fs::write(&config, "metrics_depth = 1\n").unwrap();
    let config = config.to_str().unwrap();
    let arguments = vec!["--page-cache", "own", "--metrics", &address, "--config", config];
    let mut mount = Mount::start_with(&Options { arguments, ..Options::default() });
    mount.sh("mkdir -p $CG/a/b $CG/idle && echo 8m > $CG/a/memory.max").good();
    mount.sh("head -c 3000000 /dev/urandom > $MNT/f && sync $MNT/f && echo 1 > $CG/vm.drop_caches").good();
    mount.sh_in("a", "cat $MNT/f $MNT/f > /dev/null").good();
    // The kernel tells of the last close after the process has gone on.
    let open_series = "umemcg_volume_open{volume=\"\",kind=\"directory\"}";
    until("the files are closed", || value_of(&scrape(&socket), open_series) == 0.0);
    let text = scrape(&socket);
    assert!(text.contains("# TYPE umemcg_cache_hits_total counter"), "{text}");
    let of_a = |series: &str| value_of(&text, &format!("{series}{{group=\"/a\"}}"));
    // The file also counts what threads have taken in advance.
    let usage = mount.number("a", "memory.usage_in_bytes") as f64;
    assert!((3_000_000.0..=usage).contains(&of_a("umemcg_memory_usage_bytes")), "{usage}\n{text}");
    assert_eq!(of_a("umemcg_memory_cache_bytes"), mount.value("a", "memory.stat", "total_cache") as f64);
    assert_eq!(of_a("umemcg_cache_hits_total"), mount.value("a", "memory.stat", "total_cache_hit") as f64);
    assert_eq!(of_a("umemcg_cache_misses_total"), mount.value("a", "memory.stat", "total_cache_miss") as f64);
    assert_eq!(of_a("umemcg_spec_memory_limit_bytes"), f64::from(8 << 20));
    assert!(of_a("umemcg_memory_cache_bytes") >= 3_000_000.0);
    let [hits, misses] = ["hits", "misses"].map(|what| of_a(&format!("umemcg_cache_{what}_total")));
    assert!(hits > 700.0 && (700.0..800.0).contains(&misses), "{hits} {misses}");
    assert!(!text.contains("group=\"/a/b\"") && !text.contains("group=\"/idle\""), "{text}");

    let printed = mount.umemcg(&["metrics", mount.mnt().to_str().unwrap()]);
    let printed = printed.good().to_owned();
    assert!(printed.contains("# TYPE umemcg_cache_hits counter") && printed.ends_with("# EOF"), "{printed}");
    assert!(printed.contains("umemcg_groups{state=\"deeper\"} 0"), "{printed}");
    assert_eq!(
        value_of(&printed, "umemcg_memory_cache_bytes{group=\"/a\"}"),
        of_a("umemcg_memory_cache_bytes")
    );
    mount.umemcg(&["metrics", mount.outside().to_str().unwrap()]).bad("is not a mount point");
    mount.assert_alive();
    mount.umount();
    assert!(!socket.exists(), "the socket goes with the mount");
}

#[test]
fn a_group_that_thrashes_looks_so_in_both_modes() {
    needs_mount!();
    for keeper in ["own", "kernel"] {
        let arguments = vec!["--page-cache", keeper];
        let mut mount = Mount::start_with(&Options { arguments, ..Options::default() });
        mount.sh("mkdir $CG/a && echo 8m > $CG/a/memory.max").good();
        fs::write(mount.data().join("f"), vec![1; 64_000_000]).unwrap();
        mount.sh_in("a", "for turn in 1 2 3; do cat $MNT/f > /dev/null; done").good();
        let of = |what: &str| mount.value("a", "memory.stat", &format!("total_{what}"));
        let [hits, misses, refaults] = ["cache_hit", "cache_miss", "workingset_refault_file"].map(of);
        let told = format!("{keeper}: {hits} hits, {misses} misses, {refaults} refaults");
        eprintln!("{told}");
        // All but the first of three turns.
        assert!(misses > 3 * 15_000 && hits < misses / 10, "{told}");
        assert!(refaults > misses / 2 && refaults < misses, "{told}");
        mount.umount();
    }
}

#[test]
fn an_address_in_use_mounts_nothing() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let (data, mnt) = (directory.path().join("data"), directory.path().join("mnt"));
    [&data, &mnt].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let there = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = there.local_addr().unwrap().to_string();
    let config = directory.path().join("umemcg.toml");
    let refused = |arguments: &[&str], why: &str| {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").args(arguments).args(["--pool", "64M"]);
        run(None, command).bad(why);
        assert!(!is_mounted(&mnt), "{arguments:?}");
    };
    let (data, point) = (data.to_str().unwrap(), mnt.to_str().unwrap());
    refused(&[data, point, "--metrics", &address], "in use");
    refused(&[data, point, "--metrics", "localhost"], "neither an address such as 127.0.0.1:9470");
    refused(&[data, point, "--metrics", "unix:/nowhere/metrics"], "No such file or directory");
    fs::write(&config, "pool = \"64M\"\nmetrics = \"9470\"\n").unwrap();
    let config = config.to_str().unwrap();
    refused(&[point, "--config", config], "umemcg.toml:2: \"9470\" is neither an address");
}

/// Returns what the dashboard asks, for all daemons and groups, by the titles of its panels.
fn dashboard_queries() -> Vec<(String, String)> {
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana/umemcg.json");
    let dashboard: serde_json::Value = serde_json::from_str(&fs::read_to_string(dashboard).unwrap()).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "2m");
            let title = panel["title"].as_str().unwrap().to_owned();
            queries.push((title, query.replace("$instance", ".*").replace("$group", ".*")));
        }
    }
    assert!(queries.len() > 20, "{queries:?}");
    queries
}

/// Run by `make test-metrics`, which installs Prometheus.
#[test]
#[ignore = "needs Prometheus"]
fn prometheus_takes_the_alerts_and_each_fires_when_it_should() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    let mut command = Command::new("promtool");
    command.current_dir(&rules).args(["check", "rules", "umemcg-alerts.yml"]);
    run(None, command).good();
    let mut command = Command::new("promtool");
    command.current_dir(&rules).args(["test", "rules", "umemcg-alerts-test.yml"]);
    run(None, command).good();
}

/// What a panel shows of [`FIGURES`]: labels and value of each line, query after query.
type Shown = &'static [&'static [(&'static str, f64)]];

/// Series, each with its value at the start and its growth in a minute. The labels are a mount's;
/// the process of another job is no daemon.
const FIGURES: [(&str, &str); 53] = [
    ("process_resident_memory_bytes{I, job=\"umemcg\"}", "300+0"),
    ("process_resident_memory_bytes{I, job=\"other\"}", "900+0"),
    ("process_cpu_seconds_total{I, job=\"umemcg\"}", "0+30"),
    ("umemcg_build_info{N, version=\"1\"}", "1+0"),
    ("umemcg_resident_memory_bound_bytes{I, job=\"umemcg\"}", "500+0"),
    ("umemcg_memory_usage_bytes{ROOT}", "200+0"),
    ("umemcg_memory_usage_bytes{A}", "100+0"),
    ("umemcg_spec_memory_limit_bytes{ROOT}", "400+0"),
    ("umemcg_spec_memory_limit_bytes{A}", "125+0"),
    ("umemcg_spec_memory_reservation_limit_bytes{ROOT}", "1000+0"),
    ("umemcg_spec_memory_reservation_limit_bytes{A}", "60+0"),
    ("umemcg_memory_cache_bytes{ROOT}", "150+0"),
    ("umemcg_memory_cache_bytes{A}", "80+0"),
    ("umemcg_memory_kernel_held_bytes{ROOT}", "50+0"),
    ("umemcg_memory_kernel_held_bytes{A}", "30+0"),
    ("umemcg_memory_kernel_held_bytes{B}", "0+0"),
    ("umemcg_memory_metadata_bytes{ROOT}", "30+0"),
    ("umemcg_memory_metadata_bytes{A}", "15+0"),
    ("umemcg_memory_reserved_bytes{ROOT}", "20+0"),
    ("umemcg_memory_reserved_bytes{A}", "5+0"),
    ("umemcg_memory_dirty_bytes{ROOT}", "12+0"),
    ("umemcg_memory_dirty_bytes{A}", "6+0"),
    ("umemcg_cache_hits_total{ROOT}", "0+0"),
    ("umemcg_cache_misses_total{ROOT}", "0+0"),
    ("umemcg_cache_hits_total{A}", "0+180"),
    ("umemcg_cache_misses_total{A}", "0+60"),
    ("umemcg_cache_hits_total{B}", "0+180"),
    ("umemcg_cache_misses_total{B}", "0+60"),
    ("umemcg_cache_refaults_total{A}", "0+120"),
    ("umemcg_pressure_memory_waiting_seconds_total{ROOT}", "0+60"),
    ("umemcg_pressure_memory_waiting_seconds_total{A}", "0+30"),
    ("umemcg_pressure_memory_stalled_seconds_total{ROOT}", "0+30"),
    ("umemcg_pressure_memory_stalled_seconds_total{A}", "0+15"),
    ("umemcg_memory_reclaimed_bytes_total{ROOT, by=\"direct\"}", "0+120"),
    ("umemcg_memory_reclaimed_bytes_total{A, by=\"direct\"}", "0+60"),
    ("umemcg_memory_events_total{ROOT, event=\"high\"}", "0+120"),
    ("umemcg_memory_events_total{A, event=\"high\"}", "0+60"),
    ("umemcg_memory_failcnt_total{ROOT}", "0+180"),
    ("umemcg_memory_failcnt_total{A}", "0+60"),
    ("umemcg_groups{N, state=\"shown\"}", "2+0"),
    ("umemcg_groups{N, state=\"idle\"}", "1+0"),
    ("umemcg_volume_open{N, volume=\"v\", kind=\"objects\"}", "3+0"),
    ("umemcg_store_requests_total{N, volume=\"v\", kind=\"get\"}", "0+120"),
    ("umemcg_store_read_bytes_total{N, volume=\"v\"}", "0+600"),
    ("umemcg_store_written_bytes_total{N, volume=\"v\"}", "0+300"),
    ("umemcg_store_refusals_total{N, volume=\"v\"}", "0+60"),
    ("umemcg_store_failures_total{N, volume=\"v\"}", "0+30"),
    ("umemcg_store_up{N, volume=\"v\"}", "1+0"),
    ("umemcg_store_request_duration_seconds_bucket{N, store=\"s\", le=\"1\"}", "0+60"),
    ("umemcg_store_request_duration_seconds_bucket{N, store=\"s\", le=\"+Inf\"}", "0+60"),
    ("umemcg_store_requests_under_way{N, store=\"s\"}", "4+0"),
    ("umemcg_store_requests_waiting{N, store=\"s\"}", "2+0"),
    ("umemcg_store_reads_waiting{N, store=\"s\"}", "1+0"),
];

/// The lines of the panels, in their order. A group with the groups below it is one line, and never
/// added to the groups above it; where nothing is known, as of the hits of a group whose pages the
/// kernel keeps, there is no line.
const SHOWN: [(&str, Shown); 23] = [
    ("Pool in use", &[&[("{ROOT}", 0.5)]]),
    (
        "Resident memory",
        &[
            &[("process_resident_memory_bytes{I, job=\"umemcg\"}", 300.0)],
            &[("umemcg_resident_memory_bound_bytes{I, job=\"umemcg\"}", 500.0)],
        ],
    ),
    ("Processor time", &[&[("{I, job=\"umemcg\"}", 0.5)]]),
    (
        "Memory charged",
        &[&[("umemcg_memory_usage_bytes{ROOT}", 200.0), ("umemcg_memory_usage_bytes{A}", 100.0)]],
    ),
    ("Usage of the limit", &[&[("{A}", 0.8), ("{ROOT}", 0.5)]]),
    ("Above the soft limit", &[&[("{A}", 40.0)]]),
    (
        "What it consists of",
        &[
            &[("{ROOT}", 100.0), ("{A}", 50.0)],
            &[
                ("umemcg_memory_kernel_held_bytes{ROOT}", 50.0),
                ("umemcg_memory_kernel_held_bytes{A}", 30.0),
                ("umemcg_memory_kernel_held_bytes{B}", 0.0),
            ],
            &[("umemcg_memory_metadata_bytes{ROOT}", 30.0), ("umemcg_memory_metadata_bytes{A}", 15.0)],
            &[("umemcg_memory_reserved_bytes{ROOT}", 20.0), ("umemcg_memory_reserved_bytes{A}", 5.0)],
        ],
    ),
    ("Hit ratio of reads", &[&[("{B}", 0.75)]]),
    ("Refaults", &[&[("{A}", 2.0)]]),
    ("Waiting for memory", &[&[("{ROOT}", 1.0), ("{A}", 0.5)]]),
    ("Stalled", &[&[("{ROOT}", 0.5), ("{A}", 0.25)]]),
    ("Reclaimed", &[&[("{I, group=\"/\", by=\"direct\"}", 2.0), ("{I, group=\"/a\", by=\"direct\"}", 1.0)]]),
    ("Dirty data", &[&[("umemcg_memory_dirty_bytes{ROOT}", 12.0), ("umemcg_memory_dirty_bytes{A}", 6.0)]]),
    (
        "Events",
        &[
            &[("{I, group=\"/\", event=\"high\"}", 2.0), ("{I, group=\"/a\", event=\"high\"}", 1.0)],
            &[("{ROOT}", 3.0), ("{A}", 1.0)],
        ],
    ),
    ("Groups", &[&[("umemcg_groups{N, state=\"shown\"}", 2.0), ("umemcg_groups{N, state=\"idle\"}", 1.0)]]),
    ("Read from the store", &[&[("{ROOT}", 0.0), ("{A}", 4096.0), ("{B}", 4096.0)]]),
    ("Open on volumes", &[&[("umemcg_volume_open{N, volume=\"v\", kind=\"objects\"}", 3.0)]]),
    ("Requests to stores", &[&[("{I, volume=\"v\", kind=\"get\"}", 2.0)]]),
    ("Bytes from and to stores", &[&[("{I, volume=\"v\"}", 10.0)], &[("{I, volume=\"v\"}", 5.0)]]),
    ("Trouble with stores", &[&[("{I, volume=\"v\"}", 1.0)], &[("{I, volume=\"v\"}", 0.5)]]),
    ("Stores that answer", &[&[("umemcg_store_up{N, volume=\"v\"}", 1.0)]]),
    ("Time until a store answers", &[&[("{I, store=\"s\"}", 0.99)]]),
    (
        "Waiting for a store",
        &[
            &[("umemcg_store_requests_under_way{N, store=\"s\"}", 4.0)],
            &[("umemcg_store_requests_waiting{N, store=\"s\"}", 2.0)],
            &[("umemcg_store_reads_waiting{N, store=\"s\"}", 1.0)],
        ],
    ),
];

/// Run by `make test-metrics`, which installs Prometheus.
#[test]
#[ignore = "needs Prometheus"]
fn each_panel_shows_what_is_so() {
    let labels = |text: &str| {
        let text = text.replace("ROOT", "N, group=\"/\"");
        let text = text.replace("{A", "{N, group=\"/a\"").replace("{B", "{N, group=\"/b\"");
        text.replace("N, ", "I, job=\"umemcg\", ").replace("{I", "{instance=\"n1\"")
    };
    let series: Vec<_> = FIGURES
        .iter()
        .map(|(series, values)| serde_json::json!({"series": labels(series), "values": format!("{values}x20")}))
        .collect();
    let queries = dashboard_queries();
    let mut titles: Vec<&str> = queries.iter().map(|(title, _)| title.as_str()).collect();
    titles.dedup();
    assert_eq!(titles, SHOWN.map(|(title, _)| title), "each panel has its numbers");
    let mut tests = Vec::new();
    for (title, shown) in SHOWN {
        let of_panel: Vec<_> = queries.iter().filter(|(panel, _)| panel == title).collect();
        assert_eq!(of_panel.len(), shown.len(), "each query of {title} has its numbers");
        for ((_, query), lines) in of_panel.iter().zip(shown) {
            let samples: Vec<_> = lines
                .iter()
                .map(|(line, value)| serde_json::json!({"labels": labels(line), "value": value}))
                .collect();
            tests.push(serde_json::json!({"expr": query, "eval_time": "10m", "exp_samples": samples}));
        }
    }
    let whole = serde_json::json!({
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("panels.yml");
    fs::write(&file, whole.to_string()).unwrap();
    let mut command = Command::new("promtool");
    command.args(["test", "rules"]).arg(&file);
    run(None, command).good();
}

/// A query as part of an address.
fn escaped(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Run by `make test-metrics`, which installs Prometheus.
#[test]
#[ignore = "needs Prometheus"]
fn prometheus_scrapes_a_mount_and_answers_queries() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    // A port that was free a moment ago.
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (ours, theirs) = (free().to_string(), free().to_string());
    let arguments = vec!["--page-cache", "own", "--metrics", &ours];
    let mut mount = Mount::start_with(&Options { arguments, ..Options::default() });
    mount.sh("mkdir -p '$CG/quote\"d' $CG/a && echo 8m > $CG/a/memory.max").good();
    mount.sh("head -c 3000000 /dev/urandom > $MNT/f && sync $MNT/f && echo 1 > $CG/vm.drop_caches").good();
    mount.sh_in("a", "cat $MNT/f > /dev/null").good();
    let checked = directory.path().join("scrape");
    fs::write(&checked, ask(TcpStream::connect(&ours).unwrap(), "/metrics")).unwrap();
    let checked = mount.sh(&format!("promtool check metrics < {} 2>&1", checked.display()));
    assert_eq!(checked.good(), "", "promtool has something to say");

    let config = directory.path().join("prometheus.yml");
    let job =
        "scrape_configs: [{job_name: umemcg, scrape_interval: 1s, static_configs: [{targets: ['OURS']}]}]";
    fs::write(&config, job.replace("OURS", &ours)).unwrap();
    let mut prometheus = Command::new("prometheus");
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", directory.path().join("tsdb").display()))
        .arg(format!("--web.listen-address={theirs}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let prometheus = Ends(prometheus.spawn().expect("Prometheus"));
    let query = |query: &str| -> Option<f64> {
        let stream = TcpStream::connect(&theirs).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // While it starts it is not ready.
        let answer = try_ask(stream, &format!("/api/v1/query?query={}", escaped(query))).ok()?;
        let answer: serde_json::Value = serde_json::from_str(&answer).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    until("Prometheus has scraped the mount", || query("up{job=\"umemcg\"}") == Some(1.0));
    let usage =
        query("umemcg_memory_usage_bytes{group=\"/a\"} / umemcg_spec_memory_limit_bytes{group=\"/a\"}");
    assert!(usage.is_some_and(|share| share > 0.3 && share <= 1.0), "{usage:?}");
    let unlimited =
        query("umemcg_memory_usage_bytes{group=\"/\"} / umemcg_spec_memory_limit_bytes{group=\"/\"}");
    assert!(unlimited.is_some(), "the root is limited by the pool");
    // No store is mounted, no group has a soft limit, and nothing is read meanwhile.
    let unknown = ["Above the soft limit", "Hit ratio of reads"];
    let is_there =
        |(title, query): &(String, String)| !query.contains("_store_") && !unknown.contains(&title.as_str());
    for (_, asked) in dashboard_queries().into_iter().filter(is_there) {
        // One that counts a rate needs two scrapes.
        until(&format!("{asked} returns something"), || query(&asked).is_some());
    }
    let misses = query("sum by (group) (umemcg_cache_misses_total{group=\"/a\"})");
    assert_eq!(misses, Some(mount.value("a", "memory.stat", "total_cache_miss") as f64));
    drop(prometheus);
    mount.assert_alive();
    mount.umount();
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
