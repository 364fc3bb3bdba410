//! A cache of rendered pages for two tenants. One of them asks for far more than its share.
//!
//! `cargo run -p umemcg --example object_cache`

use std::error::Error;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use umemcg::objects::RemovalCause;
use umemcg::{Engine, EngineConfig, ObjectCache};

/// Stands for an expensive computation.
fn render(page: &str) -> Arc<str> {
    format!("<html>{page}{}</html>", " ".repeat(4000)).into()
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(EngineConfig::new(64 << 20))?;
    let group = |name: &str, limit_bytes: u64| {
        let group = engine.create_group(engine.root(), OsStr::new(name))?;
        engine.set_max(&group, limit_bytes);
        Ok::<_, Box<dyn Error>>(group)
    };
    let (small, large) = (group("small", 1 << 20)?, group("large", 8 << 20)?);

    let pages: ObjectCache<String, Arc<str>> = ObjectCache::builder(&engine, "pages")
        // The bytes that the key and the value hold on the heap; an `Arc` keeps two counts before
        // its contents.
        .weigher(|url: &String, page: &Arc<str>| url.len() as u64 + page.len() as u64 + 16)
        .time_to_live(Duration::from_secs(3600))
        .listener(|url, _, why| {
            if why == RemovalCause::Removed && url.starts_with("large/0") {
                println!("{url} has left");
            }
        })
        .build();

    // One tenant reads twenty pages again and again; the other walks over ten thousand.
    for n in 0..10_000 {
        let url = format!("small/{}", n % 20);
        pages.get_or_insert_with(&small, url.clone(), || render(&url));
        let url = format!("large/{n}");
        pages.get_or_insert_with(&large, url.clone(), || render(&url));
    }
    for (name, group) in [("small", &small), ("large", &large)] {
        let stats = pages.stats_of(group);
        println!(
            "{name}: {} pages in {} KiB, {} evicted, {:.1} % of look-ups found one",
            stats.objects,
            stats.bytes >> 10,
            stats.evicted,
            stats.hit_ratio() * 100.0
        );
    }

    // A page too large for its group is given back.
    let declined = pages.insert(&small, "small/huge".into(), " ".repeat(2 << 20).into()).unwrap_err();
    println!("{} of {} bytes was not cached: {}", declined.key, declined.value.len(), declined.reason);

    pages.insert(&large, "large/0".into(), render("large/0"))?;
    pages.remove("large/0");
    Ok(())
}
