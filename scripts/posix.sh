#!/usr/bin/env bash
# pjdfstest and fsx on real mounts: on a directory, in a group that reclaims all the time, with the daemon's page cache and
# with the kernel's, that also on an exclusive mount, on a tmpfs volume, and on a volume of objects with a staging directory.
# All five at a time, since they wait more than they work. POSIX_ON runs one of them: directory, kernel, exclusive, tmpfs or
# objects. Ends with `posix: N passed, M failed`.
#
# POSIX_SCALE=short runs the same pjdfstest and fewer operations of fsx. Every case that is not expected to pass stands in
# scripts/posix-exclusions.txt (for tmpfs also in posix-exclusions-tmpfs.txt, for objects in posix-exclusions-objects.txt) with
# its reason; a case there that passes is a failure too, so the lists only shrink. PROFILE says which program in TARGET runs.
set -euo pipefail
cd "$(dirname "$0")/.."

PJDFSTEST_VERSION=0.2.2
FSX_VERSION=0.3.2
target=$(realpath -m "${TARGET:-target}")
tools=$target/posix-tools
if [ "${POSIX_SCALE:-full}" = short ]; then fsx_operations=3000; else fsx_operations=30000; fi
nr_seeds=8

[ "$(id -u)" -eq 0 ] || { echo "posix.sh: pjdfstest has to change users; run as root" >&2; exit 1; }
# They wait for the mount: to optimise them takes longer than they run.
CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --root "$tools" --target-dir "$target/posix-build" \
    "pjdfstest@$PJDFSTEST_VERSION" "fsx@$FSX_VERSION" 2>&1 | grep -v 'be sure to add' >&2 || true
[ -x "$tools/bin/pjdfstest" ] && [ -x "$tools/bin/fsx" ] || { echo "posix.sh: cargo install failed" >&2; exit 1; }
umemcg=$target/${PROFILE:-debug}/umemcg

work=$(mktemp -d)
if [ -z "${POSIX_ON:-}" ]; then
    scripts/deps.sh --object
    trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$work"' EXIT
    every=(directory kernel exclusive tmpfs objects)
    for on in "${every[@]}"; do POSIX_ON=$on scripts/posix.sh >"$work/$on" 2>&1 & done
    # What became of each stands in its last line.
    wait
    for on in "${every[@]}"; do sed "s/^/  /" "$work/$on"; done
    for on in "${every[@]}"; do tail -n 1 "$work/$on"; done | awk '
        /^posix: [0-9]+ passed, [0-9]+ failed$/ { passed += $2; failed += $4; next }
        { failed++ }
        END { print "posix: " passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 }'
    exit
fi
chmod 755 "$work"
mkdir "$work"/{data,mnt,cg,other,bin}
daemon=
server=
cleanup() {
    [ -z "$daemon" ] || { kill "$daemon" && kill "$daemon"; wait "$daemon"; } 2>/dev/null || true
    [ -z "$server" ] || { kill -9 "$server"; wait "$server"; } 2>/dev/null || true
    umount -l "$work/mnt" "$work/cg" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
# Cases remount with mount(8), which would look for a program `mount.fuse.umemcg`; -i makes it do its own work.
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$work/bin/mount"
chmod 755 "$work/bin/mount"
chmod 777 "$work/other"

# Starts a daemon with these arguments, with this shell in a group of this limit.
start() {
    local limit=$1
    shift
    # The daemon prints one line when it serves; the pipe's reader ends there.
    rm -f "$work/ready"
    mkfifo "$work/ready"
    "$umemcg" mount "$@" "$work/mnt" --control "$work/cg" --pool 64M --allow-other >"$work/ready" &
    daemon=$!
    read -r _ <"$work/ready"
    mkdir "$work/cg/posix"
    echo "$limit" >"$work/cg/posix/memory.limit_in_bytes"
    echo $$ >"$work/cg/posix/tasks"
}

stop() {
    echo $$ >"$work/cg/tasks"
    if "$umemcg" umount "$work/mnt" && wait "$daemon"; then
        daemon=
    else
        echo "  the daemon did not end well"
        failed=$((failed + 1))
    fi
}

passed=0
failed=0

for remount in false true; do
    cat >"$work/pjdfstest-$remount.toml" <<CONFIG
[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
rename_ctime = {}
[settings]
# Longer than the granularity of file times.
naptime = 0.02
allow_remount = $remount
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
CONFIG
done

# pjdfstest in a directory: at least so many cases, with these lists of exclusions.
pjdfstest() {
    local where=$1 cases_min=$2
    shift 2
    chmod 777 "$where"
    rm -f "$work"/pjdfstest*.log
    # /dev/shm: the second file system that cases about crossing between two need. The cases that remount read-only run by
    # themselves: beside the others a remount may meet a file that is still open, on any file system.
    local run=(env "PATH=$work/bin:$PATH" "$tools/bin/pjdfstest" -p "$where" -s /dev/shm)
    "${run[@]}" -c "$work/pjdfstest-false.toml" >"$work/pjdfstest.log" 2>&1 || true
    : >"$work/pjdfstest-erofs.log"
    if mountpoint -q "$where"; then
        "${run[@]}" -c "$work/pjdfstest-true.toml" erofs >"$work/pjdfstest-erofs.log" 2>&1 || true
    fi
    sed -i 's/\x1b\[[0-9;]*m//g' "$work"/pjdfstest*.log
    # One line for each case: its name and ok, FAILED or skipped.
    awk 'NF == 2 && $2 ~ /^(ok|FAILED|skipped)$/ && (/erofs/ ? FILENAME ~ /erofs/ : 1) { print $1, $2 }' \
        "$work/pjdfstest.log" "$work/pjdfstest-erofs.log" >"$work/cases"
    local nr_cases
    nr_cases=$(wc -l <"$work/cases")
    [ "$nr_cases" -ge "$cases_min" ] || { echo "only $nr_cases cases ran:"; tail -20 "$work/pjdfstest.log"; failed=$((failed + 1)); }
    local excluded name result
    excluded=$(sed -E 's/[[:space:]]*#.*//; /^$/d' "$@")
    while read -r name result; do
        if grep -qxF "$name" <<<"$excluded"; then
            if [ "$result" = ok ]; then
                echo "  $name passes: take it out of the exclusions"
                failed=$((failed + 1))
            fi
        elif [ "$result" = ok ]; then
            passed=$((passed + 1))
        else
            echo "  $name $result"
            cat "$work"/pjdfstest*.log | grep -A12 -E "^$name +FAILED" | sed '1d; /::.* \(ok\|FAILED\|skipped\)$/,$d; s/^/    /' | head -12 || true
            failed=$((failed + 1))
        fi
    done <"$work/cases"
}

cat >"$work/fsx.toml" <<'CONFIG'
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
truncate = 3
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
CONFIG

# fsx in a directory, many seeds at a time, of so many operations.
fsx() {
    local where=$1 seed pids=()
    local fsx_operations=${2:-$fsx_operations}
    for seed in $(seq "$nr_seeds"); do
        "$tools/bin/fsx" -q -f "$work/fsx.toml" -N "$fsx_operations" -S "$seed" -P "$work/other" "$where/fsx.$seed" \
            >"$work/other/log.$seed" 2>&1 &
        pids+=($!)
    done
    for seed in $(seq "$nr_seeds"); do
        if wait "${pids[seed - 1]}"; then
            passed=$((passed + 1))
        else
            echo "  seed $seed failed:"
            tail -15 "$work/other/log.$seed" | sed 's/^/    /'
            failed=$((failed + 1))
        fi
    done
}

# On a directory, whose pages this cache keeps; with further options of the mount.
on_directory() {
    start 2m --page-cache "$@" "$work/data"
    echo "a directory, page cache $*: pjdfstest $PJDFSTEST_VERSION"
    pjdfstest "$work/mnt" 398 scripts/posix-exclusions.txt
    echo "a directory, page cache $*: fsx $FSX_VERSION, $nr_seeds seeds at a time, $fsx_operations operations each, mappings included"
    fsx "$work/mnt"
    [ "$(cat "$work/cg/posix/memory.failcnt")" -gt 0 ] || { echo "  the group never met its limit"; failed=$((failed + 1)); }
    stop
    rm -rf "$work"/data/*
}

[ "$POSIX_ON" != directory ] || on_directory own --attr-timeout 0s
[ "$POSIX_ON" != kernel ] || on_directory kernel --attr-timeout 0s
[ "$POSIX_ON" != exclusive ] || on_directory kernel --exclusive

if [ "$POSIX_ON" = tmpfs ]; then
    start 32m --attr-timeout 0s --volumes
    "$umemcg" volume add memory --tmpfs --size 24M --mount "$work/mnt" >"$work/other/log"
    echo "a tmpfs volume: pjdfstest $PJDFSTEST_VERSION"
    pjdfstest "$work/mnt/memory" 384 scripts/posix-exclusions.txt scripts/posix-exclusions-tmpfs.txt
    echo "a tmpfs volume: fsx $FSX_VERSION, $nr_seeds seeds at a time, $fsx_operations operations each, mappings included"
    fsx "$work/mnt/memory"
    # The kernel tells of the last close, and of inodes that it forgets, when it gets round to it.
    for _ in $(seq 30); do
        ! "$umemcg" volume remove memory --mount "$work/mnt" >"$work/other/log" || break
    done
    # The page that holes read as stays.
    for _ in $(seq 600); do
        left=$(awk '$1 == "total_shmem" || $1 == "slab_unreclaimable" { sum += $2 } END { print sum }' "$work/cg/memory.stat")
        [ "$left" -ne 4096 ] || break
        sleep 0.1
    done
    [ "$left" -eq 4096 ] || { echo "  the removed volume left $left bytes behind"; failed=$((failed + 1)); }
    stop
fi

# Starts SeaweedFS with an open bucket. Another port of each server is 10,000 higher.
start_server() {
    local ports
    ports=$(python3 - <<'PYTHON'
import random, socket
def is_free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0
free = (port for port in iter(lambda: random.randrange(10000, 22000), None) if is_free(port) and is_free(port + 10000))
print(*(next(free) for _ in range(4)))
PYTHON
    )
    read -r -a ports <<<"$ports"
    mkdir "$work/server"
    echo '{"identities":[{"name":"anonymous","actions":["Admin","Read","Write","List","Tagging"]}]}' >"$work/server/s3.json"
    "$target/object-servers/bin/weed" server -ip=127.0.0.1 -ip.bind=127.0.0.1 -volume.max=200 -filer -s3 \
        -master.volumeSizeLimitMB=64 -dir="$work/server" -s3.config="$work/server/s3.json" -s3.port.iceberg=0 -s3.port.lance=0 \
        -master.electionTimeout=1s -master.heartbeatInterval=100ms -master.port="${ports[0]}" -volume.port="${ports[1]}" \
        -filer.port="${ports[2]}" -s3.port="${ports[3]}" >"$work/other/server.log" 2>&1 &
    server=$!
    endpoint=http://127.0.0.1:${ports[3]}
    for _ in $(seq 600); do
        # It listens before it can store.
        if python3 - "$endpoint" 2>"$work/other/log" <<'PYTHON'; then return; fi
import sys, urllib.request
for path in ("bucket", "bucket/ready"):
    urllib.request.urlopen(urllib.request.Request(f"{sys.argv[1]}/{path}", data=b"", method="PUT"), timeout=10)
PYTHON
        sleep 0.2
    done
    echo "posix.sh: SeaweedFS does not store:" >&2
    tail -20 "$work/other/server.log" "$work/other/log" >&2
    exit 1
}

if [ "$POSIX_ON" = objects ]; then
    scripts/deps.sh --object
    start_server
    mkdir "$work/staging"
    start 32m --attr-timeout 0s --anonymous --endpoint "$endpoint" --region us-east-1 --staging "$work/staging" s3://bucket/p
    echo "a volume of objects: pjdfstest $PJDFSTEST_VERSION"
    pjdfstest "$work/mnt" 398 scripts/posix-exclusions.txt scripts/posix-exclusions-objects.txt
    # Every close and fsync is an upload.
    echo "a volume of objects: fsx $FSX_VERSION, $nr_seeds seeds at a time, $((fsx_operations / 10)) operations each, mappings included"
    fsx "$work/mnt" $((fsx_operations / 10))
    stop
    kept=$(find "$work/staging" -type f ! -name volume)
    [ -z "$kept" ] || { echo "  files stay in the staging directory: $kept"; failed=$((failed + 1)); }
fi

[ "$passed" -gt 0 ] || { echo "nothing ran on $POSIX_ON" && failed=$((failed + 1)); }
echo "posix: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
