//! The text of a scrape, and its server.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use umemcg::{Engine, EngineConfig};
use umemcg_metrics::{
    GroupDepth, MetricsAddress, MetricsListener, RequestDurations, SERIES_PER_GROUP, StoreFigures,
    Surroundings, TrafficFigures, VolumeFigures, WorkFigures, exposition,
};

const MIB: u64 = 1 << 20;
/// Longest wait for an answer.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct TwoVolumes;

impl Surroundings for TwoVolumes {
    fn volumes(&self) -> Vec<VolumeFigures> {
        let volume = |name: &str, kind, used_bytes, store| {
            let name = name.into();
            VolumeFigures { name, kind, nr_open: 3, used_bytes, store }
        };
        let store = StoreFigures {
            requests: vec![("get", 7), ("put", 2)],
            read_bytes: 4711,
            written_bytes: 42,
            refusals: 3,
            throttles: 2,
            throttled: Duration::from_millis(1500),
            failures: 0,
            is_well: true,
            traffic: Some(TrafficFigures {
                store: "s3://b at http://\"x\"".into(),
                nr_waiting: 2,
                nr_under_way: 5,
                durations: vec![RequestDurations {
                    kind: "get",
                    nr_within: vec![(0.005, 3), (0.01, 0), (0.1, 2)],
                    nr_longer: 1,
                    sum_seconds: 1.5,
                }],
            }),
            work: WorkFigures {
                nr_reads_begun: 8,
                nr_reads_waiting: 9,
                nr_uploads_running: 10,
                nr_uploads_waiting: 11,
            },
        };
        vec![
            volume("data \"1\"", "directory", None, None),
            volume("tmp", "tmpfs", Some(4096), None),
            volume("bucket", "objects", None, Some(store.clone())),
            volume("same bucket", "objects", None, Some(store)),
        ]
    }

    fn version(&self) -> &'static str {
        "1.2.3"
    }
}

fn scrape(engine: &Arc<Engine>, depth: GroupDepth) -> String {
    let surroundings: Arc<dyn Surroundings> = Arc::new(TwoVolumes);
    exposition(engine, depth, &surroundings)
}

/// Returns the samples; fails if a line is neither a sample nor a comment, or a series comes twice.
fn samples(text: &str) -> HashMap<&str, f64> {
    let mut samples = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let value = value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        assert!(samples.insert(series, value).is_none(), "{series} comes twice");
    }
    samples
}

#[test]
fn latencies_of_a_store_are_shown_once_for_all_its_volumes() {
    let text = scrape(&engine(), GroupDepth::default());
    assert!(text.contains("# TYPE umemcg_store_request_duration_seconds histogram\n"), "{text}");
    let samples = samples(&text);
    let of = |what: &str, le: &str| {
        let labels = r#"store="s3://b at http://\"x\"",kind="get""#;
        samples[format!("umemcg_store_request_duration_seconds_{what}{{{le}{labels}}}").as_str()]
    };
    let within = |bound: &str| of("bucket", &format!("le=\"{bound}\","));
    assert_eq!(["0.005", "0.01", "0.1", "+Inf"].map(within), [3.0, 3.0, 5.0, 6.0]);
    assert_eq!((of("count", ""), of("sum", "")), (6.0, 1.5));
}

#[test]
fn what_waits_for_a_store_is_shown_once_for_it() {
    let text = scrape(&engine(), GroupDepth::default());
    let samples = samples(&text);
    let gauge =
        |name: &str| samples[format!(r#"umemcg_store_{name}{{store="s3://b at http://\"x\""}}"#).as_str()];
    assert_eq!(["requests_waiting", "requests_under_way"].map(gauge), [2.0, 5.0]);
    assert_eq!(["reads_begun", "reads_waiting"].map(gauge), [8.0, 9.0], "the same for each volume");
    assert_eq!(["uploads_running", "uploads_waiting"].map(gauge), [20.0, 22.0], "of both volumes");
}

fn engine() -> Arc<Engine> {
    Engine::new(EngineConfig::new(64 * MIB).pages(false)).unwrap()
}

#[test]
fn a_scrape_tells_what_the_engine_knows() {
    let engine = engine();
    let parent = engine.create_group(engine.root(), OsStr::new("parent")).unwrap();
    let child = engine.create_group(&parent, OsStr::new("child")).unwrap();
    let idle = engine.create_group(&parent, OsStr::new("idle")).unwrap();
    engine.set_max(&child, 2 * MIB);
    let account = engine.account(&child);
    account.try_grow(MIB).unwrap();
    let _ = account.try_grow(2 * MIB).unwrap_err();
    let text = scrape(&engine, GroupDepth::default());
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert!(
        text.contains("# TYPE umemcg_memory_usage_bytes gauge\n# UNIT umemcg_memory_usage_bytes bytes\n")
    );
    let samples = samples(&text);
    assert_eq!(samples[r#"umemcg_memory_usage_bytes{group="/parent/child"}"#], child.usage_bytes() as f64);
    assert_eq!(samples[r#"umemcg_memory_reserved_bytes{group="/parent/child"}"#], MIB as f64);
    assert_eq!(samples[r#"umemcg_memory_reserved_bytes{group="/"}"#], MIB as f64);
    assert_eq!(samples[r#"umemcg_spec_memory_limit_bytes{group="/parent/child"}"#], 2.0 * MIB as f64);
    assert_eq!(samples[r#"umemcg_spec_memory_limit_bytes{group="/parent"}"#], f64::INFINITY);
    assert_eq!(samples[r#"umemcg_memory_failcnt_total{group="/parent/child"}"#], 1.0);
    assert_eq!(samples[r#"umemcg_memory_events_total{group="/parent/child",event="oom"}"#], 0.0);
    let of_child = samples.keys().filter(|series| series.contains(r#"group="/parent/child""#)).count();
    assert_eq!(of_child, SERIES_PER_GROUP);
    assert!(!text.contains("/parent/idle"), "{idle:?} holds nothing");
    assert_eq!(samples[r#"umemcg_groups{state="idle"}"#], 1.0);
    assert_eq!(samples[r#"umemcg_volume_open{volume="data \"1\"",kind="directory"}"#], 3.0);
    assert_eq!(samples[r#"umemcg_volume_used_bytes{volume="tmp"}"#], 4096.0);
    assert_eq!(samples[r#"umemcg_store_requests_total{volume="bucket",kind="get"}"#], 7.0);
    assert_eq!(samples[r#"umemcg_store_requests_total{volume="bucket",kind="put"}"#], 2.0);
    assert_eq!(samples[r#"umemcg_store_read_bytes_total{volume="bucket"}"#], 4711.0);
    assert_eq!(samples[r#"umemcg_store_written_bytes_total{volume="bucket"}"#], 42.0);
    assert_eq!(samples[r#"umemcg_store_throttles_total{volume="bucket"}"#], 2.0);
    assert_eq!(samples[r#"umemcg_store_throttled_seconds_total{volume="bucket"}"#], 1.5);
    assert_eq!(samples[r#"umemcg_store_up{volume="bucket"}"#], 1.0);
    assert_eq!(samples[r#"umemcg_build_info{version="1.2.3"}"#], 1.0);
    let bound = samples["umemcg_resident_memory_bound_bytes"];
    assert!(bound > (65 * MIB) as f64 && bound < (66 * MIB) as f64, "1 MiB and a little is charged: {bound}");
    assert!(samples["process_resident_memory_bytes"] > 1e6 && samples["process_threads"] >= 1.0);
}

#[test]
fn deep_groups_are_counted_and_are_in_the_figures_above() {
    let engine = engine();
    let mut group = Arc::clone(engine.root());
    for name in ["a", "b", "c", "d"] {
        group = engine.create_group(&group, OsStr::new(name)).unwrap();
    }
    let account = engine.account(&group);
    account.try_grow(MIB).unwrap();
    let text = scrape(&engine, GroupDepth(2));
    let samples = samples(&text);
    assert_eq!(samples[r#"umemcg_groups{state="deeper"}"#], 2.0);
    assert_eq!(samples[r#"umemcg_memory_reserved_bytes{group="/a/b"}"#], MIB as f64);
    assert!(!text.contains("/a/b/c"));
    assert!(scrape(&engine, GroupDepth(0)).contains(r#"umemcg_memory_usage_bytes{group="/"}"#));
}

#[test]
fn a_tenant_adds_no_more_text_than_it_may() {
    let engine = engine();
    let mut group = engine.create_group(engine.root(), OsStr::new("deep")).unwrap();
    let mut held = Vec::new();
    for _ in 0..40 {
        group = engine.create_group(&group, OsStr::new(&"n".repeat(255))).unwrap();
        held.push(engine.charge(&group, 4096).unwrap());
    }
    let wide = engine.create_group(engine.root(), OsStr::new("wide")).unwrap();
    for nr in 0..4000 {
        let group = engine.create_group(&wide, OsStr::new(&format!("{nr}{}", "n".repeat(250)))).unwrap();
        held.push(engine.charge(&group, 4096).unwrap());
    }
    let other = engine.create_group(engine.root(), OsStr::new("z")).unwrap();
    held.push(engine.charge(&other, 4096).unwrap());
    let text = scrape(&engine, GroupDepth::default());
    let samples = samples(&text);
    // 37 have a path of more than 1 KiB.
    let nr_left_out = samples[r#"umemcg_groups{state="deeper"}"#] - 37.0;
    assert!(nr_left_out > 0.0 && nr_left_out < 2000.0, "{nr_left_out}");
    assert_eq!(samples[r#"umemcg_memory_usage_bytes{group="/z"}"#], 4096.0);
    assert!(text.len() < 33 << 20, "{}", text.len());
}

#[test]
fn no_name_of_a_group_breaks_the_format() {
    let engine = engine();
    let names = ["\"} 1 # EOF", "tab\tand space", r"back\slash", "ünïcode", "a=\"b\",c"];
    for name in names {
        let group = engine.create_group(engine.root(), OsStr::new(name)).unwrap();
        std::mem::forget(engine.charge(&group, 4096).unwrap());
    }
    let text = scrape(&engine, GroupDepth::default());
    assert_eq!(text.matches("# EOF\n").count(), 1);
    let samples = samples(&text);
    let usages = samples.keys().filter(|series| series.starts_with("umemcg_memory_usage_bytes{")).count();
    assert_eq!(usages, 1 + names.len());
}

fn ask<S: Read + Write>(mut stream: S, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let accepts = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let headers = format!("Host: a\r\nAccept: {accepts}\r\nConnection: close");
    ask(stream, &format!("{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n"))
}

fn tcp_of(address: &MetricsAddress) -> SocketAddr {
    match address {
        MetricsAddress::Tcp(address) => *address,
        MetricsAddress::Unix(path) => panic!("{path:?}"),
    }
}

fn any_port() -> MetricsListener {
    MetricsListener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap()
}

#[test]
fn prometheus_and_wrong_requests_are_answered() {
    let server = any_port().serve(|| "umemcg 1\n# EOF\n".into()).unwrap();
    let address = tcp_of(server.address());
    let (head, body) = get(address, "GET", "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert_eq!(body, "umemcg 1\n# EOF\n");
    assert!(get(address, "HEAD", "/metrics").0.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(address, "GET", "/metrics?x=y").0.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(address, "GET", "/").1.contains("/metrics"));
    assert!(get(address, "GET", "/other").0.starts_with("HTTP/1.1 404 "));
    let (head, _) = get(address, "POST", "/metrics");
    assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("allow: GET, HEAD"), "{head}");
    let (head, _) = ask(TcpStream::connect(address).unwrap(), "no HTTP at all\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "the server has ended");
}

#[test]
fn a_scrape_that_panics_is_an_error_of_its_own() {
    let server = any_port().serve(|| panic!("as it should")).unwrap();
    let address = tcp_of(server.address());
    for _ in 0..3 {
        assert!(get(address, "GET", "/metrics").0.starts_with("HTTP/1.1 500 "));
    }
}

#[test]
fn silent_clients_leave_room_for_others() {
    let server = any_port().serve(|| "# EOF\n".into()).unwrap();
    let address = tcp_of(server.address());
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(get(address, "GET", "/metrics").0.starts_with("HTTP/1.1 200 "));
    drop(silent);
    // More than are served at a time: the rest wait until some have gone.
    let many: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let waiting = std::thread::spawn(move || get(address, "GET", "/metrics"));
    drop(many);
    assert!(waiting.join().unwrap().0.starts_with("HTTP/1.1 200 "));
    // At the end clients may be connected.
    let _connected = TcpStream::connect(address).unwrap();
    drop(server);
}

#[test]
fn clients_that_do_not_read_share_what_is_kept_for_them() {
    const TEXTS_MAX: usize = 2;
    // More than the kernel takes for a client.
    const BYTES: usize = 32 << 20;
    let nr_made = Arc::new(AtomicUsize::new(0));
    let made = Arc::clone(&nr_made);
    let render = move || {
        made.fetch_add(1, Ordering::Relaxed);
        format!("a{{b=\"{}\"}} 1\n", "b".repeat(4096)).repeat(BYTES / 4096)
    };
    let server = any_port().serve(render).unwrap();
    let address = tcp_of(server.address());
    let silent: Vec<_> = (0..15)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    // On a slow machine some clients get 503.
    let mut starts = Vec::new();
    for mut stream in silent {
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        starts.push((start, stream));
    }
    let nr_served = starts.iter().filter(|(start, _)| start == b"HTTP/1.1 200").count();
    assert!(starts.iter().all(|(start, _)| [b"HTTP/1.1 200", b"HTTP/1.1 503"].contains(&start)));
    assert!(nr_served >= TEXTS_MAX && nr_made.load(Ordering::Relaxed) == TEXTS_MAX, "{nr_made:?}");
    drop(starts);
    assert!(get(address, "GET", "/metrics").0.starts_with("HTTP/1.1 200 "), "once they have gone");
}

#[test]
fn a_client_may_ask_again_on_its_connection() {
    let server = any_port().serve(|| "# EOF\n".into()).unwrap();
    let stream = TcpStream::connect(tcp_of(server.address())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut reader = BufReader::new(&stream);
    for _ in 0..3 {
        (&stream)
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n")
            .unwrap();
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| line != "# EOF\n") {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "closed after {lines:?}");
            lines.push(line);
        }
    }
}

#[test]
fn an_address_in_use_is_refused() {
    let there = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = MetricsAddress::Tcp(there.local_addr().unwrap());
    let error = MetricsListener::bind(&address).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    for wrong in ["", "unix:", "localhost", "9470", "127.0.0.1", "127.0.0.1:99999"] {
        assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong:?}");
    }
}

#[test]
fn a_socket_is_its_owners_and_replaces_only_a_dead_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let address: MetricsAddress = format!("unix:{}", path.display()).parse().unwrap();
    // Left behind by a process that has died.
    drop(UnixListener::bind(&path).unwrap());
    let server = MetricsListener::bind(&address).unwrap().serve(|| "# EOF\n".into()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let (head, body) = ask(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert_eq!(body, "", "the older format has no end");
    let second = MetricsListener::bind(&address).unwrap_err();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(MetricsListener::bind(&address).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    // The socket of a listener that never serves is removed, too.
    std::fs::remove_file(&path).unwrap();
    drop(MetricsListener::bind(&address).unwrap());
    assert!(!path.exists());
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = MetricsListener::bind(&address).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "others may change names there");
}
