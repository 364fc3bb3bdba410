//! The ways in which a volume is left, and what is true afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::{DropCaches, Group, UNLIMITED};
use umemcg_vfs::{OFlags, RenameFlags, SetAttr, Volume, VolumeFile};

use crate::common::object_world::{errno, nr_staging_files};
use crate::object_together::dice::Dice;
use crate::object_together::disturbers::end_faults;
use crate::object_together::lock;
use crate::object_together::user::User;
use crate::object_together::world::{PATIENCE, Together};

/// See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All is stored.
    Closed,
    /// Nothing more is stored, as after a crash of the process.
    Left,
    /// The store takes nothing any more.
    StoreDown,
    /// The volume is removed by force while files are open.
    Removed,
}

impl End {
    /// Returns any.
    pub fn any(dice: &mut Dice) -> Self {
        dice.of_these(&[Self::Closed, Self::Left, Self::StoreDown, Self::Removed])
    }

    /// Leaves the volume, checks what is there, and opens it again.
    pub fn run(self, together: &Arc<Together>, users: &mut [(String, Box<dyn User>)]) {
        end_faults(together);
        let overwritten = lock(&together.bucket.overwritten).clone();
        assert!(overwritten.is_empty(), "replaced unseen: {overwritten:?}");
        match self {
            Self::Closed => {
                users.iter_mut().for_each(|(_, user)| user.close_all());
                together.volume().syncfs().unwrap();
                // What tries again in the background has a draft until it ends.
                together.volume().stop_retries();
                users.iter_mut().for_each(|(_, user)| user.check_closed());
                let staged = together.view(0).staged();
                assert!(staged.iter().all(|staged| staged.is_lost), "{staged:?}");
                assert_eq!(nr_drafts(together), 0, "drafts are left");
                check_room(together);
                check_turns(together);
            }
            Self::Left => {}
            Self::StoreDown => {
                together.bucket.is_down.store(true, Ordering::Relaxed);
                let _ = together.volume().syncfs();
            }
            Self::Removed => together.volume().abandon(),
        }
        users.iter_mut().for_each(|(_, user)| user.abandon());
        together.unmount();
        end_faults(together);
        together.mount();
        let is_kept = matches!(self, Self::StoreDown | Self::Removed);
        users.iter_mut().for_each(|(_, user)| user.adopt_stored(is_kept));
        assert!(together.bucket.memory.uploads().is_empty());
    }
}

/// Returns how many files the staging directory has, without what is lost.
fn nr_drafts(together: &Together) -> usize {
    if together.streams {
        return 0;
    }
    nr_staging_files(together.staging.path())
}

/// What is a draft's before its first byte.
const DRAFT_BYTES: u64 = 8 << 10;

/// Checks that all room for staged files is free but what is in `lost/`: two tenants can take it,
/// and not a byte more.
fn check_room(together: &Together) {
    let (before, now) = (*lock(&together.lost_before), together.lost_so_far());
    if together.streams {
        // There is no disk.
        return;
    }
    if before.0 != now.0 {
        // What is claimed for what was lost since is between its length and what it was to have.
        return;
    }
    let free = together.max_bytes - before.1.min(together.max_bytes);
    let most = free.min(together.max_bytes / 4 * 3);
    let open: Vec<(String, Arc<dyn VolumeFile>)> = (0..2)
        .zip([most, free - most])
        .filter(|(_, bytes)| *bytes > DRAFT_BYTES)
        .map(|(nr, bytes)| {
            let (w, path) = (together.view(nr), format!("room-{nr}"));
            together.engine.set_max(w.group(), UNLIMITED);
            let file = w.create_with(&path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
            let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            file.setattr(&w.me, &size(bytes - DRAFT_BYTES)).unwrap();
            let more = file.setattr(&w.me, &size(bytes - DRAFT_BYTES + 1));
            assert_eq!(errno(more), Some(Errno::NOSPC), "more room than there is");
            (path, file)
        })
        .collect();
    for (path, file) in open {
        together.view(0).unlink(&path).unwrap();
        drop(file);
    }
}

/// Checks that no turn is left: a directory is renamed with all of them.
fn check_turns(together: &Together) {
    let w = together.view(0);
    w.mkdir("turns").unwrap();
    w.rename("turns", "all turns", RenameFlags::empty()).unwrap();
    w.rmdir("all turns").unwrap();
}

fn nr_descriptors(together: &Together) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let paths = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    paths.filter(|path| path.starts_with(together.staging.path())).count()
}

fn wait_for(what: &str, is_so: impl Fn() -> bool, state: impl Fn() -> String) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: {}", state());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Closes the volume for good: nothing of it is charged or open any more.
pub fn check_nothing_left(together: &Arc<Together>) {
    together.unmount();
    let engine = &together.engine;
    engine.sync_all(Duration::from_secs(60));
    let groups: Vec<Arc<Group>> = lock(&together.groups).drain(..).collect();
    let empty = |group: &Arc<Group>| {
        engine.drop_caches(DropCaches::Both);
        group.usage_exact() == 0
    };
    for group in &groups {
        wait_for("charged to a group", || empty(group), || group.usage_exact().to_string());
    }
    for group in &groups {
        engine.remove_group(group).unwrap();
    }
    wait_for("open", || nr_descriptors(together) == 0, || nr_descriptors(together).to_string());
    assert_eq!(nr_drafts(together), 0, "drafts are left");
    // The state of a group is charged as long as there is a reference to it.
    drop(groups);
    let is_as_before = || engine.root().usage_exact() == together.usage_before;
    wait_for("charged to the pool", is_as_before, || engine.root().usage_exact().to_string());
}
