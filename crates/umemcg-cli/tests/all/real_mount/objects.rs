//! Volumes of objects through a real mount, above moto. Built only with the feature `object`.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::harness::{Mount, Options, PROGRAM, SLACK_BYTES, needs_mount, run, until};
use crate::weed::free_pairs;

/// Runs a program of the virtual environment that `make test-object` makes.
fn installed(program: &str) -> Command {
    let directory = std::env::var("OBJECT_SERVERS").expect("OBJECT_SERVERS (make test-object sets it)");
    Command::new(format!("{directory}/bin/{program}"))
}

/// A server that keeps everything in memory.
pub struct Moto {
    child: Child,
    pub endpoint: String,
}

impl Moto {
    pub fn start() -> Self {
        // It ends where another program was faster to take the port.
        let moto = (0..20).find_map(|_| Self::start_on(free_pairs()[0])).expect("moto ends");
        moto.python("client.create_bucket(Bucket='bucket')");
        moto
    }

    /// Returns `None` if it has ended instead of listening.
    fn start_on(port: u16) -> Option<Self> {
        let mut command = installed("moto_server");
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut moto = Self { child, endpoint: format!("http://127.0.0.1:{port}") };
        let mut ended = false;
        until("moto listens", || {
            // First: what listens may be the program that took its port.
            let listens = TcpStream::connect(("127.0.0.1", port)).is_ok();
            ended = moto.child.try_wait().unwrap().is_some();
            listens || ended
        });
        (!ended).then_some(moto)
    }

    /// Runs statements with a client of the server.
    pub fn python(&self, statements: &str) {
        let program = format!(
            "import boto3\nclient = boto3.client('s3', endpoint_url={:?}, region_name='us-east-1')\n\
             def put(key, body): client.put_object(Bucket='bucket', Key=key, Body=body)\n{statements}\n",
            self.endpoint
        );
        let run = installed("python").arg("-c").arg(program).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number that a listing of volumes has under a name.
pub fn figure(listing: &str, name: &str) -> u64 {
    let (_, rest) =
        listing.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name}: {listing}"));
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Runs `umemcg doctor` on a volume of `s3://bucket/p`; returns what it says of the store.
fn diagnosis(endpoint: &str, bucket: &str) -> (Option<i32>, serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("umemcg.toml");
    let text = format!("[volumes.v]\nstore = \"s3://{bucket}/p\"\nendpoint = \"{endpoint}\"\n")
        + "region = \"us-east-1\"\n";
    fs::write(&config, text).unwrap();
    let mut doctor = Command::new(PROGRAM);
    doctor.args(["doctor", "--json", "--pool", "8M", "--config"]).arg(&config);
    let ended = run(None, doctor);
    let findings: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let of_store = findings.as_array().unwrap().iter().find(|finding| finding["check"] == "store");
    (ended.status.code(), of_store.unwrap_or_else(|| panic!("{ended:?}")).clone())
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn the_doctor_tells_how_fast_a_store_of_objects_answers() {
    let moto = Moto::start();
    moto.python("put('p/file', b'x')");
    let (_, found) = diagnosis(&moto.endpoint, "bucket");
    let text = found["finding"].as_str().unwrap();
    let (_, rest) = text.split_once("volume `v`: it answers in ").unwrap_or_else(|| panic!("{found}"));
    let ms: f64 = rest.split_once(" ms").unwrap().0.parse().unwrap();
    assert!(ms > 0.0 && (found["severity"] == "ok") == (ms < 200.0), "{found}");
    let (code, found) = diagnosis(&moto.endpoint, "absent");
    assert_eq!((code, &found["severity"]), (Some(1), &"fail".into()), "{found}");
    assert!(found["advice"].as_str().unwrap().contains("check the URL"), "{found}");
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_are_read_by_real_programs_within_limits() {
    needs_mount!();
    let moto = Moto::start();
    moto.python(
        "put('p/small', b'hello')\nput('p/d/e/deep', b'deep')\nput('p/a//b', b'hidden')\n\
         put('p/big', bytes(range(256)) * (16 << 12))\n\
         for nr in range(1500): put('p/many/%04d' % nr, b'x' * nr)",
    );
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let mnt = mount.mnt().to_str().unwrap().to_owned();
    let volume = |arguments: &[&str]| {
        let arguments: Vec<&str> =
            ["volume"].iter().chain(arguments).copied().chain(["--mount", &mnt]).collect();
        mount.umemcg(&arguments)
    };
    let add = ["add", "o", "--store", "s3://bucket/p", "--endpoint", &moto.endpoint, "--region", "us-east-1"];
    volume(&add).good();
    mount.group("a", "8m");
    mount.sh_in("a", "[ \"$(cat $MNT/o/small $MNT/o/d/e/deep)\" = hellodeep ]").good();
    mount.sh_in("a", "! echo x > $MNT/o/small 2>/dev/null && ! rm $MNT/o/small 2>/dev/null").good();
    let asked = || {
        let listing = volume(&["list", "--json"]).good().to_owned();
        ["lists", "heads"].map(|name| figure(&listing, name))
    };
    let cost_of_ls = || {
        let before = asked();
        let script =
            "[ \"$(ls -l $MNT/o/many | tail -n +2 | awk '{ s += $5 } END { print s }')\" = 1124250 ]";
        mount.sh_in("a", script).good();
        let after = asked();
        [after[0] - before[0], after[1] - before[1]]
    };
    // What is listed is believed for a second, and then asked for again.
    let mut costs = std::iter::repeat_with(cost_of_ls).take(20);
    assert!(costs.any(|[lists, heads]| lists <= 4 && heads <= 1), "never at the price of four lists");
    // Twice as large as the group.
    mount.sh_in("a", "[ $(cat $MNT/o/big | wc -c) = 16777216 ] && cmp $MNT/o/big $MNT/o/big").good();
    mount.sh("python3 -c \"import sys; sys.stdout.buffer.write(bytes(range(256)) * (16 << 12))\" | cmp - $MNT/o/big").good();
    assert!(mount.number("a", "memory.max_usage_in_bytes") <= 8 << 20);
    mount.sh("ls $MNT/o/a").good();
    let listed = volume(&["list", "--json"]).good().to_owned();
    assert!(listed.contains("\"hidden_keys\":[\"a//\"]") && listed.contains("\"trouble\":null"), "{listed}");
    // A new version is seen by the next open.
    moto.python("put('p/small', b'other')");
    mount.sh("[ $(cat $MNT/o/small) = other ]").good();
    // The kernel tells of the last close when it gets round to it.
    until("the volume is removed", || volume(&["remove", "o"]).status.success());
    mount.assert_alive();
    mount.umount();
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_of_one_tenant_stay_while_another_streams() {
    needs_mount!();
    let moto = Moto::start();
    moto.python("put('p/big', bytes(range(256)) * (64 << 12))\nput('p/own', bytes(range(255)) * (8 << 10))");
    let mut mount = Mount::start_with(&Options { volumes: true, pool: "32M", ..Options::default() });
    let mnt = mount.mnt().to_str().unwrap().to_owned();
    let add = ["volume", "add", "o", "--store", "s3://bucket/p", "--endpoint", &moto.endpoint];
    mount.umemcg(&[&add[..], &["--region", "us-east-1", "--mount", &mnt]].concat()).good();
    mount.group("streams", "8m");
    mount.group("stays", "8m");
    mount.sh_in("stays", "cat $MNT/o/own > /dev/null").good();
    let missed = mount.value("stays", "memory.stat", "total_cache_miss");
    // Ten times the pool.
    let stream =
        mount.shell("echo $$ > $CG/streams/tasks; for i in 1 2 3 4 5; do cat $MNT/o/big > /dev/null; done");
    let (mut stream, mut nr) = ({ stream }.spawn().unwrap(), 0);
    while stream.try_wait().unwrap().is_none() {
        mount.sh_in("stays", "cat $MNT/o/own > /dev/null").good();
        nr += 1;
    }
    assert!(stream.wait().unwrap().success() && nr > 0);
    assert_eq!(mount.value("stays", "memory.stat", "total_cache_miss"), missed, "{nr} times");
    assert!(mount.number("streams", "memory.max_usage_in_bytes") <= 8 << 20);
    mount.assert_alive();
    mount.umount();
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_are_written_by_real_programs_within_limits() {
    needs_mount!();
    let moto = Moto::start();
    moto.python("put('p/old', b'before')");
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let (mnt, staging) = (mount.mnt(), tempfile::tempdir().unwrap());
    let (mnt, staging) = (mnt.to_str().unwrap(), staging.path().to_str().unwrap());
    let store = ["--store", "s3://bucket/p", "--endpoint", &moto.endpoint, "--region", "us-east-1"];
    let add = [&["volume", "add", "o", "--mount", mnt, "--staging", staging][..], &store].concat();
    mount.umemcg(&add).good();
    mount.group("a", "8m");
    let in_store = |key: &str, bytes: &str| {
        moto.python(&format!(
            "assert client.get_object(Bucket='bucket', Key={key:?})['Body'].read() == {bytes}"
        ));
    };
    mount.sh_in("a", "echo new > $MNT/o/new && echo more >> $MNT/o/new").good();
    in_store("p/new", "b'new\\nmore\\n'");
    mount.sh_in("a", "printf B | dd of=$MNT/o/old bs=1 conv=notrunc 2> /dev/null").good();
    in_store("p/old", "b'Before'");
    // Twice as large as the group, in parts.
    mount.sh_in("a", "head -c 16777217 /dev/zero > $MNT/o/big && truncate -s 16777216 $MNT/o/big").good();
    in_store("p/big", "bytes(16 << 20)");
    let most = mount.number("a", "memory.max_usage_in_bytes");
    assert!(most <= (8 << 20) + SLACK_BYTES, "{most} bytes charged at most");
    let archive = "cd $(mktemp -d) && echo 1 > x && echo 2 > y && chmod 751 y && ln -s x z && \
                   touch -d @1600000000 x && tar cf - x y z";
    mount.sh_in("a", &format!("mkdir -p $MNT/o/d/e && ({archive}) | tar xf - -C $MNT/o/d/e")).good();
    let shown = "[ \"$(stat -c %a-%Y $MNT/o/d/e/x)\" = 644-1600000000 ] && \
                 [ $(stat -c %a $MNT/o/d/e/y) = 751 ] && [ $(readlink $MNT/o/d/e/z) = x ]";
    mount.sh_in("a", shown).good();
    let relabelled = "chmod 700 $MNT/o/old && chown 12:34 $MNT/o/old && touch -d @1500000000 $MNT/o/old";
    let xattr = "os.setxattr(sys.argv[1], 'user.x', b'1')";
    mount.sh_in("a", &format!("{relabelled} && python3 -c \"import os,sys; {xattr}\" $MNT/o/old")).good();
    mount.umemcg(&["volume", "remove", "o", "--mount", mnt]).good();
    mount.umemcg(&add).good();
    mount.sh_in("a", shown).good();
    let known = "[ \"$(stat -c %a-%u-%g-%Y $MNT/o/old)\" = 700-12-34-1500000000 ]";
    mount.sh_in("a", known).good();
    let xattr = "assert os.getxattr(sys.argv[1], 'user.x') == b'1'";
    mount.sh_in("a", &format!("python3 -c \"import os,sys; {xattr}\" $MNT/o/old")).good();
    in_store("p/old", "b'Before'");
    mount.sh_in("a", "mv $MNT/o/d $MNT/o/f && [ $(cat $MNT/o/f/e/y) = 2 ] && rm -r $MNT/o/f").good();
    mount.sh_in("a", "[ \"$(ls $MNT/o | tr '\\n' ' ')\" = 'big new old ' ]").good();
    let sqlite = "import sqlite3,sys; c = sqlite3.connect(sys.argv[1]); c.execute('create table t(a)'); \
                  c.executemany('insert into t values(?)', [(n,) for n in range(1000)]); c.commit()";
    mount.sh_in("a", &format!("python3 -c \"{sqlite}\" $MNT/o/db")).good();
    let listed = mount.umemcg(&["volume", "list", "--json", "--mount", mnt]).good().to_owned();
    assert!(listed.contains("\"staged\":[]"), "{listed}");
    mount.assert_alive();
    // The kernel tells of the last close when it gets round to it.
    let remove = ["volume", "remove", "o", "--mount", mnt];
    until("the volume is removed", || mount.umemcg(&remove).status.success());
    mount.umount();
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_are_streamed_by_real_programs_without_a_disk() {
    needs_mount!();
    let moto = Moto::start();
    moto.python("put('p/old', b'before')");
    let mut mount = Mount::start_with(&Options { volumes: true, pool: "128M", ..Options::default() });
    let mnt = mount.mnt().to_str().unwrap().to_owned();
    let volume = |arguments: &[&str]| {
        let arguments: Vec<&str> =
            ["volume"].iter().chain(arguments).copied().chain(["--mount", &mnt]).collect();
        mount.umemcg(&arguments)
    };
    let add = ["add", "o", "--store", "s3://bucket/p", "--endpoint", &moto.endpoint, "--region", "us-east-1"];
    volume(&[&add[..], &["--writes", "streamed", "--staging", "/tmp"]].concat()).bad("--staging");
    volume(&[&add[..], &["--writes", "staged"]].concat()).bad("--staging");
    volume(&[&add[..], &["--writes", "streamed"]].concat()).good();
    mount.group("a", "32m");
    let directory = tempfile::tempdir().unwrap();
    let big = directory.path().join("big").to_str().unwrap().to_owned();
    let make =
        format!("python3 -c \"import sys; sys.stdout.buffer.write(bytes(range(256)) * (64 << 12))\" > {big}");
    mount.sh(&make).good();
    let puts = || figure(volume(&["list", "--json"]).good(), "puts");
    let before = puts();
    mount.sh_in("a", &format!("cp -p {big} $MNT/o/big")).good();
    // Eight parts, the beginning and the end.
    assert_eq!(puts() - before, 10);
    mount.sh_in("a", &format!("[ \"$(md5sum < {big})\" = \"$(md5sum < $MNT/o/big)\" ]")).good();
    mount.sh_in("a", &format!("[ $(stat -c %a-%Y {big}) = $(stat -c %a-%Y $MNT/o/big) ]")).good();
    assert!(mount.number("a", "memory.max_usage_in_bytes") <= 32 << 20);
    // By a shell, whose children write in turn.
    mount.sh_in("a", &format!("{{ cat {big}; echo end; cat {big}; }} > $MNT/o/old")).good();
    mount.sh_in("a", &format!("{{ cat {big}; echo end; cat {big}; }} | cmp - $MNT/o/old")).good();
    mount.sh_in("a", &format!("dd if={big} of=$MNT/o/dd bs=3M 2> /dev/null && cmp {big} $MNT/o/dd")).good();
    mount.sh_in("a", &format!("tar cf $MNT/o/tar -C {} big", directory.path().display())).good();
    mount.sh_in("a", "mkdir $MNT/o/d && tar xf $MNT/o/tar -C $MNT/o/d && cmp $MNT/o/d/big $MNT/o/big").good();
    mount.sh_in("a", "echo 1 > $MNT/o/s && echo 22 > $MNT/o/s && : > $MNT/o/s && [ ! -s $MNT/o/s ]").good();
    mount.sh_in("a", "! echo 3 >> $MNT/o/big 2> /dev/null").good();
    mount
        .sh_in("a", "mv $MNT/o/d $MNT/o/e && touch $MNT/o/e/t && chmod 600 $MNT/o/e/big && rm -r $MNT/o/e")
        .good();
    mount.sh_in("a", "[ \"$(ls $MNT/o | tr '\\n' ' ')\" = 'big dd old s tar ' ]").good();
    moto.python("assert 'Uploads' not in client.list_multipart_uploads(Bucket='bucket')");
    // The kernel tells of the last close when it gets round to it.
    until("the volume is removed", || volume(&["remove", "o"]).status.success());
    mount.assert_alive();
    mount.umount();
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_that_cannot_be_served_are_told_at_the_mount() {
    needs_mount!();
    let moto = Moto::start();
    let directory = tempfile::tempdir().unwrap();
    let mnt = directory.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let refused = |url: &str, more: &[&str], text: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["mount", url]).arg(&mnt).args(["--pool", "64M"]).args(more);
        run(None, command).bad(text);
    };
    let here = ["--endpoint", moto.endpoint.as_str(), "--region", "us-east-1"];
    refused("s3://no-such-bucket/p", &here, "NoSuchBucket");
    refused("s3://bucket/a//c", &here, "empty name");
    refused("s3://", &here, "s3://BUCKET/PREFIX");
    refused("gopher://b", &here, "known kind");
    refused("s3://bucket", &["--endpoint", "127.0.0.1:1"], "http://HOST:PORT");
    refused("s3://bucket", &["--freshness", "sometimes"], "close-to-open");
    refused("s3://bucket", &["--staging", "/none/such", here[0], here[1], here[2], here[3]], "cannot stage");
    refused("s3://bucket", &["--staging-size", "1G"], "--staging");
    refused("./data", &["--anonymous"], "go with the URL of a store");
}
