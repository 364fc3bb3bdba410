//! One tenant scans, another has a working set. Under load from a real client, on both schedulers
//! of tokio: the quiet tenant hits as often as if it were alone, and none of its requests waits for
//! a load of the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use umemcg_service::{Document, Service};

const LIMIT: u64 = 4 << 20;
const DOCUMENT: usize = 4096;
/// Documents requested by the quiet tenant, most of them seldom: about 5 MiB more than fits.
const WORKING_SET: u64 = 2500;
const CONNECTIONS: u64 = 8;
const REQUESTS: u64 = 3000;
/// Connections that scan.
const SCANNERS: u64 = 4;
/// Documents requested by both tenants; their loads for the scanning tenant never end.
const SHARED: u64 = 50;
/// Time limit of a part of the test.
const LONG: Duration = Duration::from_secs(120);

fn scramble(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A number below `WORKING_SET`, small ones more often.
fn skewed(seed: u64) -> u64 {
    let unit = (scramble(seed) >> 11) as f64 / (1u64 << 53) as f64;
    (unit * unit * unit * WORKING_SET as f64) as u64
}

/// One persistent connection.
struct Client(TcpStream, Vec<u8>);

impl Client {
    async fn connect(port: u16) -> Self {
        Self(TcpStream::connect(("127.0.0.1", port)).await.unwrap(), Vec::new())
    }

    /// Requests a document and reads all of it.
    async fn get(&mut self, tenant: &str, document: &str) -> Vec<u8> {
        let request = format!("GET /{tenant}/{document} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
        loop {
            if let Some(end) = self.1.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.1[..end]).to_lowercase();
                assert!(head.starts_with("http/1.1 200"), "{head}");
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.expect("a length").parse().unwrap();
                if self.1.len() >= end + 4 + length {
                    let body = self.1[end + 4..end + 4 + length].to_vec();
                    self.1.drain(..end + 4 + length);
                    return body;
                }
            }
            let mut more = [0; 8192];
            let nr = self.0.read(&mut more).await.unwrap();
            assert!(nr > 0, "the service has hung up");
            self.1.extend_from_slice(&more[..nr]);
        }
    }
}

async fn load(tenant: String, document: String) -> Document {
    if tenant == "scanning" && document.starts_with("shared") {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut bytes = vec![0; DOCUMENT];
    bytes[..document.len()].copy_from_slice(document.as_bytes());
    bytes.into()
}

/// The results of a run for the quiet tenant.
#[derive(Debug)]
struct Outcome {
    hit_ratio: f64,
    p99: Duration,
}

/// Runs the service on one runtime and the clients on another; with `scans`, next to a scanning
/// tenant.
fn run(name: &str, server: Runtime, scans: bool) -> Outcome {
    let service = Service::new(&[("quiet", LIMIT), ("scanning", LIMIT)], |tenant, document| {
        Box::pin(load(tenant.to_owned(), document.to_owned()))
    });
    let service = Arc::new(service.unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = {
        let service = Arc::clone(&service);
        std::thread::spawn(move || {
            server.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    ended = service.serve(listener) => ended.unwrap(),
                    _ = stopped => {}
                }
            });
            server.shutdown_timeout(LONG);
        })
    };
    let clients = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut times, nr_scanned) = clients.block_on(async {
        tokio::time::timeout(LONG, use_service(port, scans)).await.expect("the load did not end")
    });
    let (stats, usage) = (service.stats_of("quiet"), service.usage_bytes("quiet"));
    assert!(usage <= LIMIT + LIMIT / 8, "{usage} bytes");
    stop.send(()).unwrap();
    drop(clients);
    thread.join().unwrap();
    times.sort_unstable();
    let outcome = Outcome { hit_ratio: stats.hit_ratio(), p99: times[times.len() * 99 / 100] };
    println!(
        "{name}, quiet tenant {}: hit ratio {:.2} %, p99 {:?}, {nr_scanned} documents scanned meanwhile",
        if scans { "beside a scan" } else { "alone" },
        outcome.hit_ratio * 100.0,
        outcome.p99
    );
    assert_eq!(stats.hits + stats.misses, CONNECTIONS * REQUESTS + SHARED);
    assert!(!scans || nr_scanned > 2000, "a scan of {nr_scanned} documents is none");
    outcome
}

/// Runs the clients of both tenants. Returns the time of each request of the quiet one, and the
/// number of scanned documents.
async fn use_service(port: u16, scans: bool) -> (Vec<Duration>, u64) {
    let (is_over, nr_scanned) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut others = Vec::new();
    if scans {
        // Requests without a response: their loads never end.
        for nr in 0..SHARED {
            let mut client = Client::connect(port).await;
            others.push(tokio::spawn(
                async move { drop(client.get("scanning", &format!("shared-{nr}")).await) },
            ));
        }
        for scanner in 0..SCANNERS {
            let (is_over, nr_scanned) = (Arc::clone(&is_over), Arc::clone(&nr_scanned));
            others.push(tokio::spawn(async move {
                let mut client = Client::connect(port).await;
                while !is_over.load(Relaxed) {
                    let nr = nr_scanned.fetch_add(1, Relaxed);
                    client.get("scanning", &format!("scan-{scanner}-{nr}")).await;
                }
            }));
        }
        while nr_scanned.load(Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
    }
    let quiet: Vec<_> = (0..CONNECTIONS)
        .map(|connection| {
            tokio::spawn(async move {
                let (mut client, mut times) = (Client::connect(port).await, Vec::new());
                for request in 0..REQUESTS {
                    let document = format!("quiet-{}", skewed(connection << 32 | request));
                    let start = Instant::now();
                    let body = client.get("quiet", &document).await;
                    times.push(start.elapsed());
                    assert!(body.len() == DOCUMENT && body.starts_with(document.as_bytes()));
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for connection in quiet {
        times.extend(connection.await.unwrap());
    }
    // The same documents as the endless loads: each gets a response from a load of its own.
    let mut client = Client::connect(port).await;
    for nr in 0..SHARED {
        let document = format!("shared-{nr}");
        assert!(client.get("quiet", &document).await.starts_with(document.as_bytes()));
    }
    is_over.store(true, Relaxed);
    others.into_iter().for_each(|other| other.abort());
    (times, nr_scanned.load(Relaxed))
}

fn compare(name: &str, runtime: impl Fn() -> Runtime) {
    let alone = run(name, runtime(), false);
    let beside = run(name, runtime(), true);
    assert!(alone.hit_ratio > 0.5, "{alone:?}");
    assert!((alone.hit_ratio - beside.hit_ratio).abs() <= 0.005, "alone {alone:?}, beside {beside:?}");
}

#[test]
fn a_scan_costs_the_quiet_tenant_nothing_on_one_thread() {
    compare("current_thread", || Builder::new_current_thread().enable_all().build().unwrap());
}

#[test]
fn a_scan_costs_the_quiet_tenant_nothing_on_several_threads() {
    compare("multi_thread", || Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());
}
