//! Extended attributes of groups and control files.

use std::ffi::OsStr;

use crate::support::{Fixture, MIB, fixture};
use umemcg::StatItem;
use umemcg_control::{
    ControlError, Credentials, NR_XATTRS_MAX, SetAttr, SetXattr, XATTR_BYTES, XATTR_VALUES_BYTES_MAX,
};

use ControlError::{Denied, Exists, Invalid, NoAttribute, NoMemory, NoSpace, NotPermitted, NotSupported};
use SetXattr::{Any, Create, Replace};

const ROOT: Credentials = Credentials::ROOT;

fn set(f: &Fixture, path: &str, name: &str, value: &[u8], how: SetXattr) -> Result<(), ControlError> {
    f.tree.set_xattr(f.node(path).unwrap(), OsStr::new(name), value, how, &ROOT)
}

fn get(f: &Fixture, path: &str, name: &str) -> Result<Vec<u8>, ControlError> {
    f.tree.xattr(f.node(path).unwrap(), OsStr::new(name), &ROOT)
}

fn list(f: &Fixture, path: &str, caller: &Credentials) -> String {
    String::from_utf8(f.tree.xattr_names(f.node(path).unwrap(), caller).unwrap()).unwrap()
}

fn with_group() -> Fixture {
    let f = fixture();
    f.mkdir("a").unwrap();
    f
}

/// As `setxattr(2)` on Linux's own cgroup files answers.
#[test]
fn an_attribute_is_set_as_its_flags_say() {
    let f = with_group();
    for path in ["", "a", "a/cgroup.procs"] {
        assert_eq!(set(&f, path, "user.a", b"1", Replace), Err(NoAttribute));
        assert_eq!(set(&f, path, "user.a", b"1", Create), Ok(()));
        assert_eq!(set(&f, path, "user.a", b"2", Create), Err(Exists));
        assert_eq!(get(&f, path, "user.a").as_deref(), Ok(&b"1"[..]));
        assert_eq!(set(&f, path, "user.a", b"2", Replace), Ok(()));
        assert_eq!(set(&f, path, "trusted.delegate", b"", Any), Ok(()));
        assert_eq!(get(&f, path, "user.a").as_deref(), Ok(&b"2"[..]));
        assert_eq!(get(&f, path, "trusted.delegate").as_deref(), Ok(&b""[..]));
        assert_eq!(get(&f, path, "user.b"), Err(NoAttribute));
        assert_eq!(list(&f, path, &ROOT), "trusted.delegate\0user.a\0");
        let remove = |name: &str| f.tree.remove_xattr(f.node(path).unwrap(), OsStr::new(name), &ROOT);
        assert_eq!([remove("user.a"), remove("user.a")], [Ok(()), Err(NoAttribute)]);
        assert_eq!(list(&f, path, &ROOT), "trusted.delegate\0");
    }
    for (name, error) in
        [("user.", Invalid), ("security.a", NotSupported), ("system.a", NotSupported), ("a", NotSupported)]
    {
        assert_eq!(set(&f, "a", name, b"1", Any), Err(error), "{name}");
        assert_eq!(get(&f, "a", name), Err(error), "{name}");
    }
}

#[test]
fn a_node_has_so_many_attributes_and_no_more() {
    let f = with_group();
    for n in 0..NR_XATTRS_MAX {
        set(&f, "a", &format!("user.{n}"), b"", Any).unwrap();
    }
    assert_eq!(set(&f, "a", "user.more", b"", Any), Err(NoSpace));
    assert_eq!(set(&f, "a", "trusted.more", b"", Any), Ok(()), "no user takes root's places");
    set(&f, "a", "user.0", b"again", Any).unwrap();
    set(&f, "a/tasks", "user.0", b"another file", Any).unwrap();
    let large = vec![1; XATTR_VALUES_BYTES_MAX];
    assert_eq!(set(&f, "a", "user.1", &large, Any), Err(NoSpace));
    set(&f, "", "user.0", &large, Any).unwrap();
    set(&f, "", "user.0", &large, Replace).unwrap();
    assert_eq!(set(&f, "", "user.1", b"1", Any), Err(NoSpace));
}

#[test]
fn attributes_are_charged_to_their_group_and_go_with_it() {
    let f = with_group();
    f.write("a/memory.max", (4 * MIB).to_string()).unwrap();
    let group = f.group("a");
    let charged = || group.stat_local(StatItem::SlabUnreclaimable);
    set(&f, "a", "user.some", &[1; 1000], Any).unwrap();
    assert_eq!(charged(), XATTR_BYTES as i64 + 9 + 1000);
    set(&f, "a", "user.some", &[1; 10], Any).unwrap();
    assert_eq!(charged(), XATTR_BYTES as i64 + 9 + 10);
    let value = vec![1; XATTR_VALUES_BYTES_MAX];
    let all = f.tree.read_directory(f.node("a").unwrap(), 0, 1000).unwrap();
    let files = all.iter().map(|entry| format!("a/{}", entry.name.to_str().unwrap()));
    let refused = files.map(|file| set(&f, &file, "user.b", &value, Any)).find(Result::is_err);
    assert_eq!(refused, Some(Err(NoMemory)));
    assert!(group.usage_bytes() <= 4 * MIB && charged() > 3 << 20, "{} {}", group.usage_bytes(), charged());
    let before = f.engine.root().stat_total(StatItem::SlabUnreclaimable);
    f.rmdir("a").unwrap();
    assert!(
        f.engine.root().stat_total(StatItem::SlabUnreclaimable) <= before - (3 << 20),
        "group still held"
    );
    f.mkdir("a").unwrap();
    assert_eq!(list(&f, "a", &ROOT), "");
    set(&f, "a", "user.q", b"1", Any).unwrap();
    f.rename("a", "b").unwrap();
    assert_eq!(list(&f, "b", &ROOT), "user.q\0");
}

#[test]
fn mode_bits_rule_over_user_attributes_and_root_over_trusted() {
    let f = with_group();
    set(&f, "a", "user.a", b"1", Any).unwrap();
    set(&f, "a", "trusted.a", b"1", Any).unwrap();
    let (node, user) = (f.node("a").unwrap(), Credentials::user(1000, 1000));
    let set = |name: &str| f.tree.set_xattr(node, OsStr::new(name), b"2", Any, &user);
    let get = |name: &str| f.tree.xattr(node, OsStr::new(name), &user);
    let remove = |name: &str| f.tree.remove_xattr(node, OsStr::new(name), &user);
    let own = |uid, mode| {
        let set = SetAttr { uid: Some(uid), mode: Some(mode), gid: None };
        f.tree.set_attr(node, set, &ROOT).unwrap();
    };
    for (owner, mode, read, written) in [
        (0, 0o755, Ok(()), Err(Denied)),
        (0, 0o700, Err(Denied), Err(Denied)),
        (1000, 0o755, Ok(()), Ok(())),
        (1000, 0o500, Ok(()), Err(Denied)),
    ] {
        own(owner, mode);
        assert_eq!(get("user.a").map(drop), read, "{owner} {mode:o}");
        assert_eq!([set("user.a"), set("user.b"), remove("user.b")], [written; 3], "{owner} {mode:o}");
        assert_eq!(get("trusted.a"), Err(NoAttribute));
        assert_eq!([set("trusted.a"), remove("trusted.a")], [Err(NotPermitted); 2]);
        assert_eq!(list(&f, "a", &user), "user.a\0");
    }
}
