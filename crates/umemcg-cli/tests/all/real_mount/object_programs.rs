//! Common programs on a volume of objects that can be written to: git, make and gcc, sqlite3,
//! rsync, tar and DuckDB, above SeaweedFS. What they leave is in the bucket, and they read what
//! another client puts there. Built only with the feature `object`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::harness::{needs_mount, until, waits_in};
use crate::real_mount::programs::write_c_project;
use crate::real_mount::staged_volume::StagedVolume;
use crate::weed::installed;

/// A volume whose shells run in a group that reclaims all the time.
fn start() -> StagedVolume {
    let volume = StagedVolume::start("256M");
    volume.mount.group("tight", "16m");
    volume
}

fn end(mut volume: StagedVolume) {
    assert!(volume.mount.number("tight", "memory.max_usage_in_bytes") <= 16 << 20);
    volume.mount.assert_alive();
    volume.mount.umount();
}

#[test]
#[ignore = "needs SeaweedFS and the feature object (make test-object)"]
fn objects_hold_git_repositories_and_builds() {
    needs_mount!();
    let volume = start();
    let identity =
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b";
    let commit = volume.sh(&format!(
        "{identity}; mkdir $OUT/source; cd $OUT/source; git init -q -b main
         cp -r /usr/include/linux/netfilter .; ln -s netfilter link; chmod +x netfilter/nf_nat.h
         git add .; git commit -qm first
         for i in 1 2 3; do echo $i >> netfilter/nf_log.h; git commit -qam $i; done; git rev-parse HEAD"
    ));
    let cloned = volume.sh(&format!(
        "{identity}; git clone -q --no-local $OUT/source clone; cd clone
         git fsck --full --strict; git status --porcelain; git checkout -q -b other
         echo more > more; git add more; git commit -qm more; git gc -q --prune=now; git fsck --full
         git clone -q --no-local . $OUT/back; git -C $OUT/back fsck --full; cat $OUT/back/more
         git reset -q --hard {commit}; git rev-parse HEAD"
    ));
    assert_eq!(cloned, format!("more\n{commit}"));

    write_c_project(&volume.mount.mnt().join("o/project"));
    write_c_project(&volume.mount.outside().join("project"));
    let expected = volume.sh("cd $OUT/project; make -s; ./program");
    let built = volume
        .sh("cd project; make -s -j2; make -q; touch part7.c; not 'make -q'; make -s; make -q; ./program");
    assert_eq!(built, expected);
    volume.remove();
    assert!(volume.object("project/program").starts_with(b"\x7fELF"));
    volume.add_again();
    let again = "git -C clone fsck --full; git -C clone status --porcelain; cd project; make -q; ./program";
    assert_eq!(volume.sh(again), expected);
    volume.sh("rm -r clone project; ! ls -A | grep -v ready");
    end(volume);
}

#[test]
#[ignore = "needs SeaweedFS and the feature object (make test-object)"]
fn objects_hold_trees_of_rsync_and_tar() {
    needs_mount!();
    let volume = start();
    volume.sh("mkdir $OUT/tree; cd $OUT/tree; cp -r /usr/include/linux/netfilter .; ln -s netfilter link
         chmod 600 netfilter/nf_nat.h; chown 12:34 netfilter/nf_tables.h
         touch -d 1999-12-31T23:59:59.5Z netfilter/nf_log.h; : > empty; echo odd > 'ü n'");
    // A second run finds nothing to do: modes, owners, times and links are those of the source.
    volume.sh("rsync -a $OUT/tree/ copy/; [ -z \"$(rsync -ain $OUT/tree/ copy/)\" ]
         rsync -a copy/ $OUT/back/; [ -z \"$(rsync -acin $OUT/tree/ $OUT/back/)\" ]
         echo more >> $OUT/tree/netfilter/nf_log.h; rm $OUT/tree/netfilter/nf_nat.h
         rsync -a --inplace --no-whole-file --delete $OUT/tree/ copy/
         [ -z \"$(rsync -acin --delete $OUT/tree/ copy/)\" ]");
    volume.sh("tar cf $OUT/tree.tar -C $OUT tree; mkdir unpacked; tar xpf $OUT/tree.tar -C unpacked
         tar df $OUT/tree.tar -C unpacked; tar czf packed.tgz -C unpacked tree; gzip -t packed.tgz");
    volume.remove();
    let archive = volume.mount.outside().join("packed.tgz");
    fs::write(&archive, volume.object("packed.tgz")).unwrap();
    volume
        .mount
        .sh_in(
            "tight",
            "cd $MNT/..; mkdir from; tar xzf packed.tgz -C from; diff -r --no-dereference tree from/tree",
        )
        .good();
    volume.add_again();
    // SeaweedFS drops the metadata of directories.
    volume.sh(
        "[ -z \"$(rsync -acin --omit-dir-times $OUT/tree/ copy/)\" ]
         tar df $OUT/tree.tar -C unpacked tree/empty tree/netfilter/nf_tables.h; rm -r copy unpacked packed.tgz",
    );
    end(volume);
}

#[test]
#[ignore = "needs SeaweedFS and the feature object (make test-object)"]
fn objects_hold_databases() {
    needs_mount!();
    let volume = start();
    let fill = "CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB);
                WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
                INSERT INTO t SELECT i, randomblob(500) FROM n;";
    let change = "BEGIN; DELETE FROM t WHERE a % 3 = 0; UPDATE t SET b = zeroblob(700) WHERE a % 5 = 0;
                  COMMIT; VACUUM; BEGIN; DELETE FROM t; ROLLBACK;
                  PRAGMA integrity_check; SELECT count(*) FROM t;";
    for journal in ["delete", "truncate", "wal"] {
        let made = volume.sh(&format!(
            "sqlite3 {journal}.db 'PRAGMA journal_mode={journal}; {fill}'; sqlite3 {journal}.db '{change}'"
        ));
        assert_eq!(made, format!("{journal}\nok\n2000"));
    }
    volume.remove();
    // As another client gets it; and as it gives one to a volume that is read only.
    volume.add("read-only", &[]);
    for journal in ["delete", "truncate", "wal"] {
        let database = volume.object(&format!("{journal}.db"));
        fs::write(volume.mount.outside().join("got.db"), &database).unwrap();
        volume.put("given.db", &database);
        let look = "'PRAGMA integrity_check; SELECT count(*), sum(length(b)) FROM t;'";
        let script = format!("cd $MNT; sqlite3 {}/got.db {look}", volume.mount.outside().display());
        let got = volume.mount.sh_in("tight", &script).good().to_owned();
        assert!(got.starts_with("ok\n2000|"), "{got}");
        if journal != "wal" {
            let script = format!("cd $MNT/read-only; sqlite3 'file:given.db?mode=ro' {look}");
            assert_eq!(volume.mount.sh_in("tight", &script).good(), got);
        }
    }
    end(volume);
}

/// Makes a table of four files; asks for what is in it, and what is in it of one kind.
const QUERIES: &str = r#"
import duckdb, sys
what, place = sys.argv[1:]
client = duckdb.connect(config={"threads": 2, "memory_limit": "256MB"})
if what == "make":
    for part in range(4):
        rows = f"SELECT i, i % 7 AS k, 'name' || i AS s FROM range({part} * 200000, ({part} + 1) * 200000) t(i)"
        client.sql(f"COPY ({rows}) TO '{place}/{part}.parquet' (FORMAT parquet)")
else:
    table = f"'{place}/table/*.parquet'"
    print(client.sql(f"SELECT count(*), sum(i), count(DISTINCT k), min(s) FROM {table}").fetchall())
    print(client.sql(f"SELECT sum(i) FROM {table} WHERE k = 3 AND i > 700000").fetchall())
    client.sql(f"COPY (SELECT k, count(*) n FROM {table} GROUP BY k) TO '{place}/by_k.parquet' (FORMAT parquet)")
    own = duckdb.connect(f"{place}/own.duckdb")
    own.sql("CREATE TABLE t AS SELECT * FROM range(100000) r(i)")
    own.close()
    print(duckdb.connect(f"{place}/own.duckdb", read_only=True).sql("SELECT sum(i) FROM t").fetchall())
"#;

#[test]
#[ignore = "needs SeaweedFS, DuckDB and the feature object (make test-object)"]
fn objects_are_queried_as_parquet() {
    needs_mount!();
    let volume = start();
    fs::write(volume.mount.outside().join("queries.py"), QUERIES).unwrap();
    let python = installed("python");
    let queries = format!("{} $OUT/queries.py", python.display());
    volume.sh(&format!("{queries} make $OUT"));
    for part in 0..4 {
        let bytes = fs::read(volume.mount.outside().join(format!("{part}.parquet"))).unwrap();
        volume.put(&format!("table/{part}.parquet"), &bytes);
    }
    let answers = "[(800000, 319999600000, 7, 'name0')]\n[(10714507143,)]\n[(4999950000,)]";
    assert_eq!(volume.sh(&format!("{queries} ask .")), answers);
    volume.remove();
    assert!(volume.object("by_k.parquet").ends_with(b"PAR1") && volume.object("own.duckdb").len() > 4096);
    end(volume);
}

#[test]
#[ignore = "needs SeaweedFS and the feature object (make test-object)"]
fn an_end_in_time_names_each_file_that_is_not_stored() {
    needs_mount!();
    let mut volume = StagedVolume::start("64M");
    let (mnt, names) = (volume.mount.mnt(), ["one", "two", "three"]);
    // Not a shell: its redirections of a write close a copy of the descriptor, and a close waits.
    let script = "import os, sys\nfile = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n\
                  print('open', flush=True)\nsys.stdin.readline()\nos.write(file, b'8 bytes!')\n\
                  print('written', flush=True)\nos.close(file)";
    let programs = names.map(|name| {
        let mut command = Command::new(installed("python"));
        command.args(["-c", script]).arg(mnt.join("o").join(name));
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "open");
        (program, said)
    });
    // It does not answer any more, and is asked again for longer than the daemon may wait.
    volume.weed.kill();
    for (mut program, mut said) in programs {
        program.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "written");
        until("the close waits for the store", || waits_in(program.id(), "request_wait_answer"));
        program.kill().unwrap();
        program.wait().unwrap();
    }
    let ended = volume.mount.umemcg(&["umount", mnt.to_str().unwrap(), "--flush-timeout", "1s", "--json"]);
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let outcome: serde_json::Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    for name in names {
        let path = format!("/o/{name}");
        let lost = outcome["lost"].as_array().unwrap().iter().find(|lost| lost["path"] == path.as_str());
        assert_eq!(lost.unwrap()["bytes"], 8, "{outcome}");
    }
    assert_eq!(volume.mount.wait().status.code(), Some(3));
}
