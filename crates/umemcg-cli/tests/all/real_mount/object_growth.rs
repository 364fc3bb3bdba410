//! What a tenant of a bucket can make grow, as in `growth`. A local directory stands for the
//! bucket, so no key is hidden. Built only with the feature `object`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::harness::{Mount, Options, needs_mount};
use crate::real_mount::growth::{GROUP, Growth, Held, check, raise_descriptor_limits};

/// Objects in one directory.
const NR: usize = 1_500;
/// The length of what is written of each stream: less than a part.
const STREAM_BYTES: usize = 4 << 20;
const NR_STREAMS: usize = 4;

/// The volumes as the tenant sees them.
struct Tenant {
    /// With a staging directory. The objects are in `d`.
    staged: PathBuf,
    /// With streamed writes.
    streamed: PathBuf,
}

const GROWTHS: &[Growth<Tenant>] = &[
    Growth { what: "names of objects", charged_min: NR as u64 * 400, grow: names },
    Growth { what: "names that do not exist", charged_min: 0, grow: absent_names },
    Growth { what: "open objects", charged_min: 500 * 400, grow: open_objects },
    Growth { what: "open listings", charged_min: 40 * 400, grow: open_listings },
    Growth { what: "files that are staged", charged_min: 150 * 400, grow: drafts },
    Growth {
        what: "parts of streams",
        charged_min: (NR_STREAMS * STREAM_BYTES) as u64 * 9 / 10,
        grow: streams,
    },
];

impl Tenant {
    fn object(&self, nr: usize) -> PathBuf {
        self.staged.join(format!("d/f{nr}"))
    }
}

fn names(tenant: &Tenant) -> Held {
    (0..NR).for_each(|nr| assert!(fs::metadata(tenant.object(nr)).is_ok()));
    Box::new(())
}

fn absent_names(tenant: &Tenant) -> Held {
    (0..500).for_each(|nr| assert!(fs::metadata(tenant.staged.join(format!("new/a{nr}"))).is_err()));
    Box::new(())
}

fn open_objects(tenant: &Tenant) -> Held {
    let files: Vec<File> = (0..500).map(|nr| File::open(tenant.object(nr)).unwrap()).collect();
    files.iter().for_each(|file| assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1));
    Box::new(files)
}

fn open_listings(tenant: &Tenant) -> Held {
    let list = |_| {
        let mut listing = fs::read_dir(tenant.staged.join("d")).unwrap();
        listing.next().unwrap().unwrap();
        listing
    };
    Box::new((0..40).map(list).collect::<Vec<_>>())
}

/// They are stored when they are closed.
fn drafts(tenant: &Tenant) -> Held {
    let make = |nr| {
        let file = File::create(tenant.staged.join(format!("new/f{nr}"))).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        file
    };
    Box::new((0..150).map(make).collect::<Vec<_>>())
}

fn streams(tenant: &Tenant) -> Held {
    let bytes = vec![7; STREAM_BYTES];
    let make = |nr| {
        let file = File::create(tenant.streamed.join(format!("f{nr}"))).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file
    };
    Box::new((0..NR_STREAMS).map(make).collect::<Vec<_>>())
}

#[test]
fn what_a_tenant_of_a_bucket_makes_grow_is_charged() {
    needs_mount!();
    let mount = Mount::start_with(&Options { volumes: true, pool: "256M", ..Options::default() });
    raise_descriptor_limits(&mount);
    for directory in ["staged/d", "staged/new", "streamed", "staging"] {
        fs::create_dir_all(mount.data().join(directory)).unwrap();
    }
    for nr in 0..NR {
        fs::write(mount.data().join(format!("staged/d/f{nr}")), "x").unwrap();
    }
    // A directory without objects is none.
    fs::write(mount.data().join("staged/new/there"), "x").unwrap();
    let (mnt, staging) = (mount.mnt(), mount.data().join("staging"));
    let writes = [["--staging", staging.to_str().unwrap()], ["--writes", "streamed"]];
    for (name, writes) in ["staged", "streamed"].into_iter().zip(writes) {
        let url = format!("file://{}", mount.data().join(name).display());
        let add = ["volume", "add", name, "--mount", mnt.to_str().unwrap(), "--store", &url];
        mount.umemcg(&[&add[..], &writes].concat()).good();
    }
    mount.group(GROUP, "-1");
    let tenant = Tenant { staged: mnt.join("staged"), streamed: mnt.join("streamed") };
    // As in `growth`: threads, heap and pool have reached their working sizes.
    mount
        .sh("cd $MNT/staged/new; seq 100 | xargs -P 8 -I{} sh -c 'cat ../d/f{} > {}; ls > /dev/null; rm {}'
             head -c 20M /dev/zero > $MNT/streamed/warm; rm $MNT/streamed/warm")
        .good();
    check(&mount, &tenant, GROWTHS);
}
