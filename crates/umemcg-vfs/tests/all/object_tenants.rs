//! Requests carry the tenant on whose behalf they are sent, so that tenants can take turns.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::common::object_world::{World, pattern};
use umemcg::files::ReadStep;
use umemcg_vfs::bucket::current_tenant;
use umemcg_vfs::{OFlags, RenameFlags, SetAttr};

/// Returns the tenants and methods of the requests that something makes.
fn asked(w: &World, act: impl FnOnce()) -> (BTreeSet<usize>, BTreeSet<String>) {
    let seen = Arc::<Mutex<(BTreeSet<usize>, BTreeSet<String>)>>::default();
    let here = Arc::clone(&seen);
    w.bucket.on_request(move |method, _| {
        let mut seen = here.lock().unwrap();
        seen.0.insert(current_tenant());
        seen.1.insert(method.to_owned());
    });
    act();
    w.bucket.on_request(|_, _| {});
    seen.lock().unwrap().clone()
}

#[test]
fn requests_are_of_the_tenant_that_asks() {
    for w in [World::new(), World::streamed(64 << 20)] {
        let other = w.of_group("other");
        w.bucket.put("there", pattern(300_000, 1));
        let use_files = |w: &World, name: &str| {
            w.put(name, b"bytes").unwrap();
            assert_eq!(w.get(name).unwrap(), b"bytes");
            w.engine.drop_caches(umemcg::DropCaches::Both);
            assert_eq!(w.get("there").unwrap().len(), 300_000);
        };
        let (of_one, methods) = asked(&w, || use_files(&w, "a"));
        assert!(["GET", "HEAD", "PUT"].iter().all(|method| methods.contains(*method)), "{methods:?}");
        let (of_other, _) = asked(&w, || use_files(&other, "b"));
        assert!(of_one.len() == 1 && of_other.len() == 1, "{of_one:?} {of_other:?}");
        assert!(of_one.is_disjoint(&of_other) && !of_one.contains(&0), "{of_one:?} {of_other:?}");
    }
    assert_eq!(current_tenant(), 0);
}

#[test]
fn changes_by_name_are_of_the_tenant_that_asks() {
    for w in [World::new(), World::streamed(64 << 20)] {
        w.bucket.put("a", "bytes");
        let change = |w: &World| {
            w.rename("a", "b", RenameFlags::empty()).unwrap();
            w.set("b", &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
            w.unlink("b").unwrap();
            w.mkdir("d").unwrap();
            w.set("d", &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
            w.rmdir("d").unwrap();
        };
        let (tenants, methods) = asked(&w, || change(&w));
        assert!(["COPY", "DELETE", "PUT"].iter().all(|method| methods.contains(*method)), "{methods:?}");
        assert!(tenants.len() == 1 && !tenants.contains(&0), "{tenants:?}");
    }
}

#[test]
fn a_second_read_is_of_the_tenant_of_the_first() {
    let w = World::new();
    w.bucket.put("a", "bytes");
    let file = w.open("a", OFlags::RDONLY).unwrap();
    w.bucket.damages.store(1, Ordering::Relaxed);
    w.bucket.hold_reads();
    let step = file.step_read(w.group(), file.content().start_read(0, 5)).unwrap();
    assert!(matches!(step, ReadStep::Waits(_)));
    // The bucket answers on a thread of no tenant.
    let (tenants, _) = asked(&w, || w.bucket.answer_reads());
    assert_eq!(w.bucket.gets.load(Ordering::Relaxed), 2);
    assert!(tenants.iter().any(|tenant| *tenant != 0), "{tenants:?}");
}
