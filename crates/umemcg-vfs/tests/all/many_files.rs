//! More open files than a group may have descriptors: those that can be opened again give theirs
//! back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umemcg_vfs::{Caller, Create, Names, OFlags, Open, Resolve, SetAttr, Volume, VolumeFile};

/// The process's limit of descriptors; the tests have a thread each.
const NR_MAX: u64 = 800;
/// Of these, one tenant has at most this many for its handles.
const NR_OF_TENANT: usize = NR_MAX as usize / 8 * 3 / 2;
/// The number of files that one tenant opens.
const NR_FILES: usize = 1000;

fn limit_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(NR_MAX), maximum }).unwrap();
}

/// A volume, and a tenant of it.
fn fixture(resolve: Resolve) -> (Fixture, Caller) {
    limit_descriptors();
    let v = Fixture::with(|config| (config.resolve, config.max_idle_descriptors) = (resolve, 8));
    with_tenant(v)
}

fn with_tenant(v: Fixture) -> (Fixture, Caller) {
    let group = v.engine.create_group(v.engine.root(), name("tenant")).unwrap();
    let tenant = Caller { group, ..v.root.clone() };
    (v, tenant)
}

/// Returns whether descriptors can be given back here; says so where not.
fn can_reopen(v: &Fixture) -> bool {
    let can = v.vfs.resolve() == Resolve::Handle;
    if !can {
        eprintln!("SKIPPED: needs file handles");
    }
    can
}

/// Descriptors of this process for files in a directory.
fn nr_open(dir: &Path) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.parent() == Some(dir))).count()
}

fn text(n: usize) -> Vec<u8> {
    format!("content of {n}").into_bytes()
}

fn create(v: &Fixture, tenant: &Caller, n: usize) -> Arc<dyn VolumeFile> {
    let (_, file) =
        v.vfs.create(tenant, ROOT, name(&format!("{n}")), 0o600, OFlags::RDWR | OFlags::EXCL).unwrap();
    file.write(&tenant.group, 0, &text(n), false).unwrap();
    file
}

/// Has the next reads come from the host.
fn forget_pages(v: &Fixture, files: &[Arc<dyn VolumeFile>]) {
    v.vfs.syncfs().unwrap();
    files.iter().for_each(|file| file.content().invalidate_clean());
}

fn read(file: &Arc<dyn VolumeFile>, tenant: &Caller) -> Vec<u8> {
    file.read(&tenant.group, 0, 100).unwrap().to_vec()
}

#[test]
fn a_group_has_more_files_open_than_descriptors() {
    let (v, tenant) = fixture(Resolve::Auto);
    if !can_reopen(&v) {
        return;
    }
    let files: Vec<_> = (0..NR_FILES).map(|n| create(&v, &tenant, n)).collect();
    assert!(nr_open(v.dir.path()) <= NR_OF_TENANT + 8);
    forget_pages(&v, &files);
    // Whatever becomes of the name and the mode.
    fs::set_permissions(v.host("0"), PermissionsExt::from_mode(0o000)).unwrap();
    fs::rename(v.host("1"), v.host("moved")).unwrap();
    v.set(files[2].node(), SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap();
    for (n, file) in files.iter().enumerate() {
        assert_eq!(read(file, &tenant), text(n));
        file.write(&tenant.group, 1, b"O", false).unwrap();
    }
    assert!(nr_open(v.dir.path()) <= NR_OF_TENANT + 8);
    for (n, file) in files.iter().enumerate() {
        file.fsync(false).unwrap();
        let path = v.host(&if n == 1 { "moved".into() } else { format!("{n}") });
        assert_eq!(fs::read(path).unwrap()[..4], *b"cOnt");
    }
    drop(files);
    v.vfs.syncfs().unwrap();
    assert_eq!(nr_open(v.dir.path()).saturating_sub(8), 0);
}

#[test]
fn a_file_removed_while_open_keeps_its_content() {
    let (v, tenant) = fixture(Resolve::Auto);
    if !can_reopen(&v) {
        return;
    }
    let files: Vec<_> = (0..NR_FILES).map(|n| create(&v, &tenant, n)).collect();
    forget_pages(&v, &files);
    for n in 0..NR_OF_TENANT / 4 {
        v.vfs.unlink(&tenant, ROOT, name(&format!("{n}"))).unwrap();
        let (to, from) = (NR_FILES - 1 - n, NR_FILES / 2 + n);
        let rename = v.vfs.rename(
            &tenant,
            ROOT,
            name(&format!("{from}")),
            ROOT,
            name(&format!("{to}")),
            umemcg_vfs::RenameFlags::empty(),
        );
        rename.unwrap();
    }
    for (n, file) in files.iter().enumerate() {
        assert_eq!(read(file, &tenant), text(n));
    }
}

#[test]
fn a_file_removed_on_the_host_is_stale_without_its_descriptor() {
    let (v, tenant) = fixture(Resolve::Auto);
    if !can_reopen(&v) {
        return;
    }
    let files: Vec<_> = (0..NR_FILES).map(|n| create(&v, &tenant, n)).collect();
    forget_pages(&v, &files);
    // The first files are those that were not used for the longest time.
    files.iter().for_each(|file| drop(read(file, &tenant)));
    forget_pages(&v, &files);
    for (n, file) in files[..10].iter().enumerate() {
        fs::remove_file(v.host(&format!("{n}"))).unwrap();
        fs::write(v.host(&format!("{n}")), "of another file").unwrap();
        assert_eq!(errno(file.read(&tenant.group, 0, 100)), Errno::STALE);
    }
    assert_eq!(read(&files[10], &tenant), text(10));
}

#[test]
fn what_cannot_be_opened_again_is_bounded_by_the_share() {
    let (v, tenant) = fixture(Resolve::Auto);
    if !can_reopen(&v) {
        return;
    }
    // Files without a name.
    let mut removed = Vec::new();
    let refused = loop {
        let n = removed.len();
        match v.vfs.create(&tenant, ROOT, name(&format!("{n}")), 0o600, OFlags::RDWR | OFlags::EXCL) {
            Ok((_, file)) => removed.push(file),
            refused => break errno(refused),
        }
        v.vfs.unlink(&tenant, ROOT, name(&format!("{n}"))).unwrap();
        assert!(removed.len() <= NR_OF_TENANT);
    };
    assert_eq!(refused, Errno::NFILE);
    // Others go on.
    let group = v.engine.create_group(v.engine.root(), name("neighbour")).unwrap();
    let neighbour = Caller { group, ..v.root.clone() };
    let file = create(&v, &neighbour, NR_FILES);
    assert_eq!(read(&file, &neighbour), text(NR_FILES));
    removed.pop();
    assert!(v.vfs.open(&tenant, file.node(), OFlags::RDONLY).is_ok());
}

#[test]
fn directories_with_kept_descriptors_are_bounded_by_the_share() {
    limit_descriptors();
    let (v, tenant) = with_tenant(Fixture::on_tmpfs());
    let mut handles = Vec::new();
    let refused = loop {
        match v.vfs.opendir(&tenant, ROOT) {
            Ok(handle) => handles.push(handle),
            refused => break errno(refused.map(drop)),
        }
        assert!(handles.len() <= NR_OF_TENANT);
    };
    assert_eq!(refused, Errno::NFILE);
    // Others go on.
    drop(v.vfs.opendir(&v.root, ROOT).unwrap());
    handles.pop();
    assert!(v.vfs.opendir(&tenant, ROOT).is_ok());
}

#[test]
fn files_reached_by_names_keep_their_descriptors() {
    let (v, tenant) = fixture(Resolve::Names);
    let create = |n: usize| v.vfs.create(&tenant, ROOT, name(&format!("{n}")), 0o600, OFlags::RDWR);
    let mut files = Vec::new();
    let refused = loop {
        match create(files.len()) {
            Ok((_, file)) => files.push(file),
            refused => break errno(refused),
        }
        assert!(files.len() <= NR_OF_TENANT);
    };
    assert_eq!(refused, Errno::NFILE);
    // Further opens of one file take no descriptor.
    let again: Vec<_> =
        (0..100).map(|_| v.vfs.open(&tenant, files[0].node(), OFlags::RDONLY).unwrap()).collect();
    drop(again);
}

#[test]
fn files_beyond_the_share_are_right_under_many_threads() {
    const NR_THREADS: usize = 4;
    const NR_ROUNDS: u64 = 4000;
    let (v, tenant) = fixture(Resolve::Auto);
    if !can_reopen(&v) {
        return;
    }
    let files: Vec<_> = (0..NR_OF_TENANT * 3).map(|n| create(&v, &tenant, n)).collect();
    let expected: Vec<_> = files.iter().map(|_| AtomicU64::new(0)).collect();
    files.iter().for_each(|file| assert_eq!(file.write(&tenant.group, 0, &[0; 8], false).unwrap(), 8));
    std::thread::scope(|scope| {
        for thread in 0..NR_THREADS {
            let (tenant, files, expected) = (&tenant, &files, &expected);
            scope.spawn(move || {
                let mut state = thread as u64 + 1;
                for round in 1..NR_ROUNDS {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Each thread has files of its own; the descriptors are shared by all.
                    let at = (state >> 33) as usize % (files.len() / NR_THREADS) * NR_THREADS + thread;
                    let (file, value) = (&files[at], &expected[at]);
                    match state >> 60 {
                        0..6 => {
                            let data = round.to_le_bytes();
                            let written = file.try_write(&tenant.group, 0, &data, false);
                            written.unwrap_or_else(|| file.write(&tenant.group, 0, &data, false).unwrap());
                            value.store(round, Ordering::Relaxed);
                        }
                        6 => file.fsync(true).unwrap(),
                        7 => file.content().invalidate_clean(),
                        _ => {
                            let found = file.read(&tenant.group, 0, 8).unwrap().to_vec();
                            assert_eq!(found, value.load(Ordering::Relaxed).to_le_bytes());
                        }
                    }
                }
            });
        }
    });
    assert!(nr_open(v.dir.path()) <= NR_OF_TENANT + 8);
    v.vfs.syncfs().unwrap();
    for (n, value) in expected.iter().enumerate() {
        let host = fs::read(v.host(&format!("{n}"))).unwrap();
        assert_eq!(host[..8], value.load(Ordering::Relaxed).to_le_bytes());
    }
}
