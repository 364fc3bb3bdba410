//! `umemcg.h` is made from the sources and committed. This test makes it again and compares.
//! `UPDATE_HEADER=1` writes it.

use std::fs;
use std::path::Path;

use cbindgen::{Builder, Config};

/// In the order of the header.
const SOURCES: [&str; 10] = [
    "../common/src/failure.rs",
    "src/last_error.rs",
    "src/callback.rs",
    "src/engine_functions.rs",
    "src/group_functions.rs",
    "src/charge_functions.rs",
    "src/account_functions.rs",
    "src/shrinker_functions.rs",
    "src/cache_functions.rs",
    "src/statistics_functions.rs",
];

fn header() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(source));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    // cbindgen can prefix the values of an enum with its own name only.
    String::from_utf8(text).unwrap().replace("UMEMCG_CODE_", "UMEMCG_")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("umemcg.h");
    let made = header();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&path, made).unwrap();
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "umemcg.h is out of date: run the test with UPDATE_HEADER=1");
}

/// Whatever a program can call is in the header.
#[test]
fn every_exported_function_is_in_the_header() {
    let (mut nr, header) = (0, header());
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for function in text.split("#[unsafe(no_mangle)]").skip(1) {
            let name = function.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            assert!(header.contains(&format!("{name}(")), "{name} is not in umemcg.h");
            nr += 1;
        }
    }
    assert!(nr > 30, "{nr} functions were found");
}

#[test]
fn versions_and_names_of_files_are_those_of_the_manifest() {
    let numbers = |name: &str| {
        let header = header();
        let line = header.lines().find(|line| line.contains(&format!("#define {name} "))).unwrap();
        line.split(' ').nth(2).unwrap().to_owned()
    };
    let version =
        ["MAJOR", "MINOR", "PATCH"].map(|part| numbers(&format!("UMEMCG_VERSION_{part}"))).join(".");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let soname = format!("libumemcg.so.{}", numbers("UMEMCG_ABI_VERSION"));
    assert!(include_str!("../build.rs").contains(&format!("-soname,{soname}\"")));
}
