//! A volume above an odd store, with one fault at a time.

use std::ffi::OsStr;

use rustix::io::Errno;
use umemcg_vfs::{Create, Lookup, Names, NodeId, OFlags, Open, RenameFlags, Volume};

use super::dice::Dice;
use super::model::{Model, Writes};
use super::s3::TYPE;
use super::{Asked, Character, Listing, Oddity};

#[test]
fn a_change_in_place_keeps_what_others_stored_with_the_object() {
    for writes in [Writes::Staged, Writes::Streamed] {
        for stores_attributes in [true, false] {
            let mut model = Model::with(Dice(1), writes, stores_attributes);
            let told = [("x.y", "z"), ("mode", "33261"), (TYPE, "text/html")];
            model.store.state(|state| state.put("p/a", b"old", &told));
            model.write("a", b"changed").unwrap();
            model.unmount();
            model.store.state(|state| {
                let stored = &state.objects["p/a"];
                let case = format!("{writes:?} {stores_attributes} {:?}", stored.metadata);
                assert_eq!(stored.bytes, b"changed", "{case}");
                for (name, value) in told {
                    assert_eq!(stored.metadata.get(name).map(String::as_str), Some(value), "{case}");
                }
            });
        }
    }
}

#[test]
fn a_listing_of_empty_parts_has_an_end() {
    let model = Model::with(Dice(1), Writes::Staged, false);
    model.store.always(Asked::List, Oddity::Listing(Listing::EmptyParts));
    let listed = model.list(".");
    assert!(listed.as_ref().is_err_and(|error| error.errno() == Errno::IO), "{listed:?}");
}

#[test]
fn an_open_file_outlives_a_listing_without_etags() {
    for seconds_ahead in [30, -30] {
        let model = Model::with(Dice(1), Writes::Staged, false);
        model.store.set_character(Character { seconds_ahead, ..Character::default() });
        model.store.always(Asked::List, Oddity::Listing(Listing::NoEtags));
        let (me, volume, flags) = (&model.me, model.volume(), OFlags::WRONLY | OFlags::CREATE);
        let create = |parent, name: &OsStr| volume.create(me, parent, name, 0o644, flags);
        let (entry, file) = model.at("d/a", create).unwrap();
        let write = |at| {
            file.write(&me.group, at, b"x", false).unwrap();
            file.flush().unwrap();
        };
        write(0);
        let listed = model.at("d/a", |parent, _| {
            volume.opendir(me, parent)?.readdirplus(me, 0, &mut |entry| {
                entry.entry.into_iter().for_each(|found| volume.forget(found.node, 1));
                true
            })
        });
        listed.unwrap();
        write(1);
        let (root, no_flags) = (NodeId::ROOT, RenameFlags::empty());
        volume.rename(me, root, OsStr::new("d"), root, OsStr::new("g"), no_flags).unwrap();
        write(2);
        let there = model.store.state(|state| state.objects.get("p/g/a").map(|object| object.bytes.clone()));
        assert_eq!(there.as_deref(), Some(&b"xxx"[..]), "{seconds_ahead}");
        file.closed();
        drop(file);
        volume.forget(entry.node, 1);
    }
}

#[test]
fn a_page_in_place_of_the_store_loses_no_staged_write() {
    for hides_listings in [true, false] {
        let mut model = Model::with(Dice(1), Writes::Staged, true);
        let page = || model.store.be_behind_a_page(hides_listings);
        let written = model.write_once("a", b"staged", page);
        assert!(written.is_err(), "it is stored behind the page");
        let synced = model.volume().syncfs();
        assert!(synced.is_err(), "it is stored behind the page");
        model.store.be_calm();
        model.unmount();
        let there = model.store.state(|state| state.objects.get("p/a").map(|object| object.bytes.clone()));
        assert_eq!(there.as_deref(), Some(&b"staged"[..]), "{hides_listings}");
    }
}
