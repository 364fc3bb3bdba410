//! Common programs: copying trees, a compiler, git, sqlite3.

use std::fs;
use std::path::Path;

use crate::harness::{Mount, Options, needs_mount};

/// A mount whose shells run in a group that reclaims all the time.
fn tight() -> Mount {
    let mount = Mount::start_with(&Options { pool: "96M", ..Options::default() });
    mount.group("tight", "16m");
    mount
}

#[test]
fn a_tree_copied_with_its_attributes_is_the_same_tree() {
    needs_mount!();
    let mut mount = tight();
    let tree = mount.outside().join("tree");
    fs::create_dir(&tree).unwrap();
    // Thousands of real files, and what a package never has: links, odd names, odd modes, holes,
    // other owners.
    mount
        .sh(&format!(
            "cd {}
             cp -a /usr/include/linux /usr/include/asm-generic .
             ln -s linux/fs.h relative; ln -s /etc/passwd absolute; ln -s nowhere dangling
             ln linux/fs.h hard; mkfifo pipe; mkdir empty; mkdir -p deep/{{1..9}}/x
             touch $'new\\nline' $'\\xff\\xfe' \"$(printf '%0255d' 7)\" -- -dash ' blank '
             chmod 4755 hard; chmod 000 empty; chmod 1777 deep; chown 1234:5678 relative deep
             chown -h 1:2 dangling; truncate -s 100M sparse; printf tail >> sparse
             touch -d 1999-12-31T23:59:59.123456789Z linux/fs.h",
            tree.display()
        ))
        .good();
    mount
        .sh_in(
            "tight",
            &format!("cp -a {} $MNT/copy; diff -r --no-dereference -x pipe {0} $MNT/copy", tree.display()),
        )
        .good();
    let list = "find . -printf '%P|%y|%m|%U|%G|%n|%s|%T@|%l\\n' | sort";
    let original = mount.sh(&format!("cd {}; {list}", tree.display()));
    let through_mount = mount.sh(&format!("cd $MNT/copy; {list}"));
    assert_eq!(original.good(), through_mount.good());
    mount.umount();
    let in_directory = mount.sh(&format!("cd $DATA/copy; {list}"));
    assert_eq!(original.good(), in_directory.good());
    mount.sh(&format!("diff -r --no-dereference -x pipe {} $DATA/copy", tree.display())).good();
}

#[test]
fn a_file_beyond_four_gibibytes_keeps_its_holes_and_its_bytes() {
    needs_mount!();
    let mut mount = tight();
    mount
        .sh_in(
            "tight",
            "cd $MNT; truncate -s 9G large; printf middle | dd of=large bs=1 seek=5000000000 conv=notrunc
             printf tail >> large; sync large; [ $(stat -c %s large) = $((9 * 1024 ** 3 + 4)) ]
             [ $(dd if=large bs=1 skip=5000000000 count=6) = middle ]; [ $(tail -c 4 large) = tail ]
             [ $(du -k large | cut -f1) -lt 100 ]; cp --sparse=always large copy; truncate -s 5000000003 copy
             [ \"$(tail -c 3 copy)\" = mid ]; [ $(du -k copy | cut -f1) -lt 100 ]",
        )
        .good();
    mount.umount();
    mount.sh("[ $(tail -c 3 $DATA/copy) = mid ]; [ $(tail -c 4 $DATA/large) = tail ]").good();
}

/// Writes a C project of many small files that depend on each other.
pub fn write_c_project(directory: &Path) {
    const NR_PARTS: usize = 24;
    fs::create_dir_all(directory).unwrap();
    let mut header = String::from("#ifndef PARTS_H\n#define PARTS_H\n");
    let mut sum = String::new();
    for part in 0..NR_PARTS {
        header += &format!("long part{part}(long x);\n");
        sum += &format!("    x = part{part}(x);\n");
        let body = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include \"parts.h\"\n\
             static char table{part}[65536] = {{ {part} }};\n\
             long part{part}(long x) {{\n    memset(table{part} + 1, (int)x, 100);\n\
             return x * 31 + table{part}[0] + {part};\n}}\n"
        );
        fs::write(directory.join(format!("part{part}.c")), body).unwrap();
    }
    fs::write(directory.join("parts.h"), header + "#endif\n").unwrap();
    let main = format!(
        "#include <stdio.h>\n#include \"parts.h\"\nint main(void) {{\n    long x = 1;\n{sum}    printf(\"%ld\\n\", x);\n    return 0;\n}}\n"
    );
    fs::write(directory.join("main.c"), main).unwrap();
    let makefile = "PARTS := $(patsubst %.c,%.o,$(wildcard part*.c))\n\
                    program: main.o libparts.a\n\t$(CC) -o $@ $^\n\
                    libparts.a: $(PARTS)\n\t$(AR) rcs $@ $^\n\
                    %.o: %.c parts.h\n\t$(CC) -O1 -g -c -o $@ $<\n";
    fs::write(directory.join("Makefile"), makefile).unwrap();
}

#[test]
fn a_c_project_is_compiled_on_the_mount() {
    needs_mount!();
    let mut mount = tight();
    write_c_project(&mount.mnt().join("project"));
    write_c_project(&mount.outside().join("project"));
    let expected = mount.sh(&format!("cd {}/project; make -s; ./program", mount.outside().display()));
    let built = mount.sh_in("tight", "cd $MNT/project; make -s -j2; ./program");
    assert_eq!(built.good(), expected.good());
    // A program runs from the mount, and times are good enough for make.
    mount.sh_in("tight", "cd $MNT/project; make -q").good();
    mount.sh("cd $MNT/project; touch part7.c; not 'make -q'; make -s -j2; make -q; ./program").good();
    mount.umount();
    assert_eq!(mount.sh("$DATA/project/program").good(), expected.good());
}

#[test]
fn git_clones_a_repository_and_finds_no_fault() {
    needs_mount!();
    let mut mount = tight();
    let source = mount.outside().join("source");
    fs::create_dir(&source).unwrap();
    let identity =
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b";
    mount
        .sh(&format!(
            "{identity}; cd {}; git init -q -b main; cp -r /usr/include/linux .; git add .; git commit -qm first
             for i in $(seq 20); do echo $i >> linux/fs.h; git commit -qam $i; done; git tag v1",
            source.display()
        ))
        .good();
    let commit = mount.sh(&format!("git -C {} rev-parse HEAD", source.display())).good().to_owned();
    let result = mount.sh_in(
        "tight",
        &format!(
            "{identity}; cd $MNT
             git clone -q --no-local {} clone
             git -C clone fsck --full --strict
             git -C clone status --porcelain
             cd clone; echo more > more; git add more; git commit -qm more; git gc -q --aggressive --prune=now
             git fsck --full; git -C $MNT clone -q clone second; git -C $MNT/second fsck --full
             git reset -q --hard v1; git rev-parse HEAD",
            source.display()
        ),
    );
    assert_eq!(result.good(), commit);
    mount.umount();
    mount
        .sh("git -c safe.directory='*' -C $DATA/clone fsck --full; git -C $DATA/clone status --porcelain")
        .good();
}

#[test]
fn a_database_survives_the_death_of_its_client() {
    needs_mount!();
    let mut mount = tight();
    for journal in ["delete", "wal"] {
        // Each line that the client prints has been committed before.
        let acknowledged = mount
            .sh_in(
                "tight",
                &format!(
                    "db=$MNT/{journal}.db
                     sqlite3 $db 'PRAGMA journal_mode={journal}; CREATE TABLE t(i INTEGER PRIMARY KEY, b BLOB);' > /dev/null
                     mkfifo $MNT/../{journal}.fifo; exec 3<> $MNT/../{journal}.fifo
                     (for i in $(seq 1 100000); do
                        echo \"INSERT INTO t VALUES($i, randomblob(2000)); SELECT $i;\"
                      done) 2>/dev/null | sqlite3 -cmd 'PRAGMA synchronous=FULL' $db >&3 &
                     while read -r n <&3; do last=$n; [ $n -lt 200 ] || break; done
                     pkill -9 -P $$ sqlite3 || kill -9 %1
                     wait || true
                     echo $last"
                ),
            )
            .good()
            .to_owned();
        let result = mount.sh(&format!(
            "sqlite3 $MNT/{journal}.db 'PRAGMA integrity_check; SELECT count(*) >= {acknowledged} FROM t;'"
        ));
        assert_eq!(result.good(), "ok\n1", "{journal}");
    }
    mount.umount();
    for journal in ["delete", "wal"] {
        let result = mount.sh(&format!("sqlite3 $DATA/{journal}.db 'PRAGMA integrity_check;'"));
        assert_eq!(result.good(), "ok", "{journal}");
    }
}

#[test]
fn shared_mappings_are_written_back() {
    needs_mount!();
    let mut mount = tight();
    mount.sh("head -c 8M /dev/urandom > $MNT/mapped; cp $MNT/mapped $MNT/../expected").good();
    // Writes through a mapping of the compiler's making: a small program, compiled here.
    fs::write(
        mount.outside().join("map.c"),
        "#include <fcntl.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
         int main(int argc, char **argv) {\n    (void)argc;\n    int fd = open(argv[1], O_RDWR);\n\
         char *m = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);\n\
         if (m == MAP_FAILED) return 1;\n    for (long i = 0; i < 8 << 20; i += 4096) m[i + i / 4096 % 4096] ^= 0x55;\n\
         if (argv[2]) return msync(m, 8 << 20, MS_SYNC) || fsync(fd);\n    return munmap(m, 8 << 20) || close(fd);\n}\n",
    )
    .unwrap();
    mount.sh("cd $MNT/..; gcc -O1 -o map map.c; ./map expected").good();
    mount.sh_in("tight", "$MNT/../map $MNT/mapped sync").good();
    mount.sh("cmp $MNT/mapped $MNT/../expected; cmp $DATA/mapped $MNT/../expected").good();
    mount.sh("$MNT/../map $MNT/../expected").good();
    mount.sh_in("tight", "$MNT/../map $MNT/mapped").good();
    mount.sh("cmp $MNT/mapped $MNT/../expected").good();
    mount.umount();
    mount.sh("cmp $DATA/mapped $DATA/../expected").good();
}

/// Tries each way to empty a running program by an open, and once more after its end.
const EMPTIES_PROGRAM: &str = r#"
import errno, os, subprocess, sys, time
program = sys.argv[1]
running = subprocess.Popen([program, '60'])
for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY):
    try:
        os.open(program, flags | os.O_TRUNC)
        sys.exit(f'opened with {flags}: {running.poll()}')
    except OSError as error:
        assert error.errno == errno.ETXTBSY, error
assert open(program, 'rb').read() == open('/usr/bin/sleep', 'rb').read()
running.kill()
running.wait()
for _ in range(600):
    try:
        os.close(os.open(program, os.O_RDONLY | os.O_TRUNC))
        break
    except OSError as error:
        assert error.errno == errno.ETXTBSY, error
        time.sleep(0.05)
assert os.stat(program).st_size == 0
"#;

#[test]
fn a_program_that_runs_is_not_emptied_by_an_open() {
    needs_mount!();
    for arguments in [vec![], vec!["--page-cache", "kernel", "--exclusive"]] {
        let mut mount = Mount::start_with(&Options { arguments, ..Options::default() });
        fs::write(mount.outside().join("empties.py"), EMPTIES_PROGRAM).unwrap();
        mount.sh("cp /usr/bin/sleep $MNT/program; python3 $MNT/../empties.py $MNT/program").good();
        mount.umount();
    }
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    fs::write(mount.outside().join("empties.py"), EMPTIES_PROGRAM).unwrap();
    let mnt = mount.mnt().to_str().unwrap().to_owned();
    mount.umemcg(&["volume", "add", "t", "--tmpfs", "--size", "4M", "--mount", &mnt]).good();
    mount.sh("cp /usr/bin/sleep $MNT/t/program; python3 $MNT/../empties.py $MNT/t/program").good();
    mount.umount();
}
