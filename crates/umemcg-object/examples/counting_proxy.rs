//! The proxy of the tests as a program, for use outside tests: it counts the requests to a store.
//!
//! `counting_proxy http://127.0.0.1:5802` prints its own address. For each line of its input it
//! prints the counts so far, such as `DELETE 0 GET 64 HEAD 1 LIST 0 POST 0 PUT 0`.

use std::io::BufRead;

#[path = "../tests/all/servers/proxy.rs"]
#[allow(dead_code)]
mod proxy;

fn main() {
    let Some(endpoint) = std::env::args().nth(1).filter(|text| text.starts_with("http://")) else {
        eprintln!("usage: counting_proxy http://HOST:PORT");
        std::process::exit(2);
    };
    let proxy = proxy::Proxy::before(&endpoint);
    println!("{}", proxy.endpoint());
    for _ in std::io::stdin().lock().lines() {
        let lists = proxy.nr_listings();
        let count = |method: &str| match method {
            "LIST" => lists,
            "GET" => proxy.nr_seen("GET") - lists,
            _ => proxy.nr_seen(method),
        };
        let counts =
            ["DELETE", "GET", "HEAD", "LIST", "POST", "PUT"].map(|name| format!("{name} {}", count(name)));
        println!("{}", counts.join(" "));
    }
}
