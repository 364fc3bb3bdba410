//! Very many volumes of objects in one daemon, and a directory of very many objects. Built only
//! with the feature `object`.
//!
//! `make test-object` has some of both, `make scale` all: ten thousand volumes, ten million keys.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Instant;

use crate::harness::{Mount, Options, needs_mount};
use crate::real_mount::synthetic_store::SyntheticStore;
use crate::real_mount::volumes::nr_threads;

/// More than the runtime has connections open at a time.
const NR_CONNECTIONS_MAX: usize = 64;

fn add(mount: &Mount, endpoint: &str, name: &str) {
    add_prefix(mount, endpoint, (name, name), "uniform");
}

fn add_prefix(mount: &Mount, endpoint: &str, (name, prefix): (&str, &str), attributes: &str) {
    let mut stream = UnixStream::connect(mount.outside().join("s")).unwrap();
    let options = format!(
        "\"endpoint\":\"{endpoint}\",\"region\":\"x\",\"anonymous\":true,\"attributes\":\"{attributes}\""
    );
    let data = format!("{{\"store\":{{\"url\":\"s3://bucket/{prefix}\",{options}}}}}");
    writeln!(stream, "{{\"do\":\"volume_add\",\"name\":\"{name}\",\"data\":{data}}}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"answer\":\"volumes\""), "{name}: {answer}");
}

fn start() -> Mount {
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    mount.umount();
    let socket = mount.outside().join("s");
    mount.start_daemon(&["--pool", "256M", "--socket", socket.to_str().unwrap()]);
    mount
}

fn many_volumes(nr: usize) {
    let (store, mut mount) = (SyntheticStore::start(0), start());
    add(&mount, &store.endpoint, "v0");
    let (threads, before) = (nr_threads(&mount), mount.daemon_memory("VmRSS"));
    for n in 1..nr {
        add(&mount, &store.endpoint, &format!("v{n}"));
    }
    let bytes = mount.daemon_memory("VmRSS").saturating_sub(before) / nr as u64;
    assert_eq!(fs::read_dir(mount.mnt()).unwrap().count(), nr);
    for n in (0..nr).rev() {
        assert_eq!(fs::read_to_string(mount.mnt().join(format!("v{n}/f"))).unwrap(), "x");
    }
    let (connections, threads) = (store.nr_connections(), nr_threads(&mount).saturating_sub(threads));
    eprintln!(
        "{nr} volumes of objects: {bytes} bytes resident for each, {connections} connections, {threads} threads more than one"
    );
    assert!(bytes < 64 << 10, "{bytes} bytes for an idle volume");
    assert!(connections <= NR_CONNECTIONS_MAX, "{connections} connections to one server");
    assert!(threads <= 16, "{threads} threads more than with one volume");
    mount.assert_alive();
    mount.umount();
}

fn many_keys(nr: usize) {
    const LIMIT: u64 = 8 << 20;
    let (store, mut mount) = (SyntheticStore::start(nr), start());
    add(&mount, &store.endpoint, "huge");
    mount.group("lists", "8m");
    let before = mount.daemon_memory("VmRSS");
    let mut shell = mount.shell("echo $$ > $CG/lists/tasks; ls -f $MNT/huge/many | wc -l");
    let listed = shell.stdout(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    // With the directory and the one above.
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), (nr + 2).to_string());
    let most = mount.number("lists", "memory.max_usage_in_bytes");
    let growth = mount.daemon_memory("VmHWM").saturating_sub(before);
    let listings = store.nr_listings();
    eprintln!(
        "{nr} keys: {listings} listings, {most} bytes charged at most, {growth} bytes more resident at most"
    );
    assert!(most <= LIMIT, "{most} bytes charged");
    assert!(growth <= 4 * LIMIT, "{growth} bytes resident");
    assert!(listings <= nr / 1000 + 8, "{listings} listings");
    mount.assert_alive();
    mount.umount();
}

/// Lists a directory of so many objects with their attributes. Returns the requests that this has
/// cost: parts of listings, and looks at objects.
fn long_listing(mount: &Mount, store: &SyntheticStore, nr: usize, directory: &str) -> (usize, usize) {
    let (begun, before) = (Instant::now(), (store.nr_listings(), store.nr_heads()));
    let listed = mount.sh(&format!("ls -l $MNT/{directory} | grep -c '^-rw-r--r-- 1 '"));
    assert_eq!(listed.good().trim(), nr.to_string());
    let (listings, heads) = (store.nr_listings() - before.0, store.nr_heads() - before.1);
    eprintln!("ls -l {directory}, {nr} objects: {listings} LIST, {heads} HEAD, {:?}", begun.elapsed());
    (listings, heads)
}

#[test]
#[ignore = "needs the feature object (make test-object)"]
fn a_long_listing_asks_for_none_of_its_objects() {
    needs_mount!();
    const NR: usize = 10_000;
    let (store, mut mount) = (SyntheticStore::start(NR), start());
    add_prefix(&mount, &store.endpoint, ("top", "huge/many"), "uniform");
    add_prefix(&mount, &store.endpoint, ("above", "huge"), "uniform");
    assert_eq!(long_listing(&mount, &store, NR, "top"), (10, 0));
    // The directory is looked up, which no object is and a part of a listing tells.
    assert_eq!(long_listing(&mount, &store, NR, "above/many"), (11, 1));
    let (listings, heads) = long_listing(&mount, &store, NR, "above/many");
    assert!(listings <= 11 && heads == 0, "{listings} LIST, {heads} HEAD for a directory that is known");
    mount.assert_alive();
    mount.umount();
}

#[test]
#[ignore = "needs the feature object (make test-object)"]
fn stored_attributes_of_listed_objects_are_asked_for() {
    needs_mount!();
    const NR: usize = 3000;
    let (store, mut mount) = (SyntheticStore::start(NR), start());
    add_prefix(&mount, &store.endpoint, ("top", "huge/many"), "stored");
    assert_eq!(long_listing(&mount, &store, NR, "top"), (3, NR));
    mount.assert_alive();
    mount.umount();
}

#[test]
#[ignore = "needs the feature object (make test-object)"]
fn hundreds_of_volumes_of_objects_share_connections() {
    needs_mount!();
    many_volumes(300);
}

/// `make scale`.
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_volumes_of_bucket_prefixes_share_connections() {
    needs_mount!();
    many_volumes(10_000);
}

#[test]
#[ignore = "needs the feature object (make test-object)"]
fn a_listing_of_many_objects_stays_within_its_group() {
    needs_mount!();
    many_keys(100_000);
}

/// `make scale`.
#[test]
#[ignore = "takes minutes"]
fn a_listing_of_ten_million_keys_stays_within_its_group() {
    needs_mount!();
    many_keys(10_000_000);
}
