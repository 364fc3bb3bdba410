//! The texts that the files of dirty limits show and accept.

use std::time::Duration;

use crate::support::{Fixture, fixture};
use umemcg::files::DirtyBound;
use umemcg_control::ControlError::{Invalid, NotFound};

const FILES: [&str; 4] = [
    "memory.dirty_ratio",
    "memory.dirty_limit_in_bytes",
    "memory.dirty_background_ratio",
    "memory.dirty_background_limit_in_bytes",
];

fn all(f: &Fixture, group: &str) -> [String; 4] {
    FILES.map(|name| f.read(&format!("{group}{name}")).unwrap().trim_end().to_owned())
}

#[test]
fn of_a_pair_one_is_set_and_the_other_reads_zero() {
    let f = fixture();
    f.mkdir("a").unwrap();
    assert_eq!(all(&f, "a/"), ["20", "0", "10", "0"], "as in Linux");
    f.write("a/memory.dirty_limit_in_bytes", "1m\n").unwrap();
    assert_eq!(all(&f, "a/"), ["0", "1048576", "10", "0"]);
    f.write("a/memory.dirty_background_limit_in_bytes", "4097").unwrap();
    assert_eq!(all(&f, "a/"), ["0", "1048576", "0", "4097"]);
    f.write("a/memory.dirty_ratio", "100").unwrap();
    assert_eq!(all(&f, "a/"), ["100", "0", "0", "4097"]);
    f.write("a/memory.dirty_background_ratio", "0\n").unwrap();
    assert_eq!(all(&f, "a/"), ["100", "0", "0", "0"]);
}

#[test]
fn what_is_no_share_and_no_size_is_refused_and_changes_nothing() {
    let f = fixture();
    f.mkdir("a").unwrap();
    for name in ["memory.dirty_ratio", "memory.dirty_background_ratio"] {
        for text in ["101", "256", "-1", "x", "", "1.5", "20%", "1k"] {
            assert_eq!(f.write(&format!("a/{name}"), text), Err(Invalid), "{name} < {text:?}");
        }
    }
    for name in ["memory.dirty_limit_in_bytes", "memory.dirty_background_limit_in_bytes"] {
        for text in ["-1", "max", "1.0", "1xx", "", "9223372036854775808"] {
            assert_eq!(f.write(&format!("a/{name}"), text), Err(Invalid), "{name} < {text:?}");
        }
        for (text, bytes) in [("0", "0"), ("5K", "5120"), ("2g", "2147483648"), (" 12 \n", "12")] {
            f.write(&format!("a/{name}"), text).unwrap();
            assert_eq!(f.read(&format!("a/{name}")).unwrap().trim_end(), bytes);
        }
        f.write(&format!("a/{}", name.replace("limit_in_bytes", "ratio")), "20").unwrap();
    }
    assert_eq!(all(&f, "a/"), ["20", "0", "20", "0"]);
}

#[test]
fn a_new_group_has_its_parents_values_and_the_root_the_pools() {
    let f = fixture();
    f.mkdir("a").unwrap();
    for (name, value) in [("vm.dirty_bytes", "32m"), ("vm.dirty_background_ratio", "5")] {
        f.write(name, value).unwrap();
    }
    assert_eq!(all(&f, ""), ["0", "33554432", "5", "0"]);
    f.mkdir("b").unwrap();
    f.write("b/memory.dirty_background_limit_in_bytes", "2m").unwrap();
    f.mkdir("b/c").unwrap();
    assert_eq!(all(&f, "a/"), ["20", "0", "10", "0"], "it was there before");
    assert_eq!(all(&f, "b/c/"), ["0", "33554432", "0", "2097152"]);
    f.write("vm.dirty_ratio", "30").unwrap();
    assert_eq!(all(&f, "b/c/"), ["0", "33554432", "0", "2097152"]);
    for name in FILES {
        assert_eq!(f.write(name, "10"), Err(Invalid), "{name} of the root");
    }
    assert_eq!(all(&f, ""), ["30", "0", "5", "0"]);
}

#[test]
fn the_pools_files_are_the_roots_and_act_on_the_pool() {
    let f = fixture();
    f.mkdir("a").unwrap();
    let names = [
        ("vm.dirty_ratio", "20"),
        ("vm.dirty_bytes", "0"),
        ("vm.dirty_background_ratio", "10"),
        ("vm.dirty_background_bytes", "0"),
        ("vm.dirty_expire_centisecs", "3000"),
        ("vm.dirty_writeback_centisecs", "500"),
    ];
    for (name, value) in names {
        assert_eq!(f.read(name).unwrap().trim_end(), value, "{name}");
        assert_eq!(f.read(&format!("a/{name}")), Err(NotFound), "{name}");
        for text in ["-1", "x", "", "99999999999999999999"] {
            assert_eq!(f.write(name, text), Err(Invalid), "{name} < {text:?}");
        }
    }
    for (name, text) in [
        ("vm.dirty_ratio", "101"),
        ("vm.dirty_bytes", "8191"),
        ("vm.dirty_background_bytes", "0"),
        ("vm.dirty_expire_centisecs", "2147483648"),
    ] {
        assert_eq!(f.write(name, text), Err(Invalid), "{name} < {text}");
    }
    f.write("vm.dirty_bytes", "8192").unwrap();
    f.write("vm.dirty_expire_centisecs", "150").unwrap();
    f.write("vm.dirty_writeback_centisecs", "0").unwrap();
    let limits = f.engine.cache().dirty_limits();
    assert_eq!(limits.bounds(f.engine.root()).foreground, DirtyBound::Bytes(8192));
    assert_eq!((limits.expire(), limits.interval()), (Duration::from_millis(1500), Duration::ZERO));
    assert_eq!(f.read("vm.dirty_writeback_centisecs").as_deref(), Ok("0\n"));
}
