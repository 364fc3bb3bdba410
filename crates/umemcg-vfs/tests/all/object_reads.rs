//! Reads that a bucket has begun: how many there are at once.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::common::memory_bucket::MemoryBucket;
use umemcg::files::ReadStep;
use umemcg::{Engine, EngineConfig, Group};
use umemcg_vfs::object::{Freshness, ObjectConfig};
use umemcg_vfs::volume::next_store_id;
use umemcg_vfs::{Caller, Lookup, NodeId, OFlags, ObjectVolume, Open, VolumeFile};

/// Bytes between two reads, so that they are not made one.
const STRIDE: u64 = 3 * 4096;
/// More reads than a group may have begun of one store.
const NR: u64 = 600;

/// Opens the object `f` of a bucket through a volume of its own.
fn open(engine: &Arc<Engine>, group: &Arc<Group>, bucket: &Arc<MemoryBucket>) -> Arc<dyn VolumeFile> {
    let config = ObjectConfig {
        bucket: Arc::clone(bucket) as _,
        freshness: Freshness::Immutable,
        stores_attributes: false,
        uid: 0,
        gid: 0,
        staging: None,
        streams: false,
        notes: None,
    };
    let volume = ObjectVolume::open(engine, &config, 0).unwrap();
    let group = Arc::clone(group);
    let me = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 1 };
    let entry = volume.lookup(&me, NodeId::ROOT, OsStr::new("f")).unwrap();
    volume.open(&me, entry.node, OFlags::RDONLY).unwrap()
}

#[test]
fn a_whole_object_costs_no_more_than_a_request_a_mebibyte() {
    const LEN: u64 = 64 << 20;
    let engine = Engine::new(EngineConfig::new(128 << 20)).unwrap();
    let group = engine.create_group(engine.root(), OsStr::new("g")).unwrap();
    let bucket = Arc::<MemoryBucket>::default();
    bucket.put("f", vec![7; LEN as usize]);
    let file = open(&engine, &group, &bucket);
    let (mut at, mut nr_waits) = (0, 0);
    while at < LEN {
        let pages = file.try_read(at, 128 << 10).unwrap_or_else(|| {
            let mut read = file.content().start_read(at, 128 << 10);
            loop {
                match file.step_read(&group, read).unwrap() {
                    ReadStep::Done(pages) => return pages,
                    ReadStep::Waits(waiting) => {
                        nr_waits += 1;
                        let (sender, ready) = channel();
                        waiting.when_ready(move |read| drop(sender.send(read)));
                        read = ready.recv().unwrap();
                    }
                }
            }
        });
        at += pages.len() as u64;
    }
    assert!(bucket.asked().0 <= LEN >> 20, "{:?}", bucket.asked());
    // The bucket answers before the reader comes there.
    assert_eq!(nr_waits, 0);
}

#[test]
fn volumes_of_a_bucket_share_the_reads_begun_of_it() {
    let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
    let group = engine.create_group(engine.root(), OsStr::new("g")).unwrap();
    let bucket = Arc::<MemoryBucket>::default();
    bucket.put("f", vec![7; (NR * STRIDE) as usize]);
    *bucket.source.lock().unwrap() = Some(next_store_id());
    bucket.hold_reads();
    // What a reader gives up is read all the same.
    let nr_begun_after = |file: &dyn VolumeFile| {
        for nr in 0..NR {
            drop(file.step_read(&group, file.content().start_read(nr * STRIDE, 1)).unwrap());
        }
        bucket.nr_begun() as u64
    };
    let files = [(); 2].map(|()| open(&engine, &group, &bucket));
    let nr_begun = nr_begun_after(&*files[0]);
    assert!(nr_begun < NR, "{nr_begun}");
    assert_eq!(nr_begun_after(&*files[1]), nr_begun, "the bucket has what it may have of the group");
    // A volume of another bucket has as many.
    *bucket.source.lock().unwrap() = Some(next_store_id());
    assert_eq!(nr_begun_after(&*open(&engine, &group, &bucket)), 2 * nr_begun);
    bucket.answer_reads();
}
