#!/usr/bin/env bash
# Every benchmark and experiment that umemcg-bench has, at a small scale, or those given as arguments: to see that each runs
# to its end and that its answers are right. Each run checks its own result and fails when it is wrong. Targets say nothing
# at this size: those that are missed are printed and not judged. As many run at a time as there are processors.
# EXPERIMENTS_SCALE and EXPERIMENTS_ROUNDS make the runs larger, TARGET says where umemcg-bench was built. Prints the seconds
# of each, and the output of those that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${TARGET:-target}")
bench=$target/debug/umemcg-bench
scale=${EXPERIMENTS_SCALE:-0.05}
rounds=${EXPERIMENTS_ROUNDS:-1}
# What hangs has failed. The longest takes 73 s beside another on two processors.
SECONDS_MAX=${EXPERIMENTS_SECONDS_MAX:-300}
# Everything that a run makes is below this directory: files, and mount points.
work=$(mktemp -d)
export TMPDIR=$work

mounts() { awk -v below="$work/" 'index($5, below) == 1 { print $3, $5 }' /proc/self/mountinfo; }

# Ends the connections of the mounts that a run has left, so that nothing waits for them, and takes them away.
unmount_all() {
    local device point
    while read -r device point; do
        { echo 1 >"/sys/fs/fuse/connections/${device#*:}/abort"; } 2>/dev/null || true
        umount --no-canonicalize --force --lazy "$point" 2>/dev/null || fusermount3 -uz -- "$point" || true
    done < <(mounts)
}
trap 'unmount_all; rm -rf --one-file-system "$work"' EXIT

# Runs an experiment within a bound. A process that waits in the kernel for a mount of its own ends only with that mount.
bounded() {
    local run status=0 deadline=$((SECONDS + SECONDS_MAX))
    "$@" &
    run=$!
    while kill -0 "$run" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
    if kill "$run" 2>/dev/null; then
        echo "it has not ended within $SECONDS_MAX s"
        unmount_all
        for _ in {1..50}; do kill -0 "$run" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$run" 2>/dev/null || true
    fi
    wait "$run" || status=$?
    return "$status"
}

if [ $# -ne 1 ]; then
    names=$("$bench" names)
    [ $# -eq 0 ] || names=$(printf '%s\n' "$@")
    export EXPERIMENTS_WRONG=$work/wrong
    if ! xargs -P "$(nproc)" -n 1 scripts/experiments_small.sh <<<"$names"; then
        # Once more, at the end: what is above is long.
        sed 's/^/experiments-small: /' "$EXPERIMENTS_WRONG" >&2 || echo "experiments-small: some were wrong" >&2
        exit 1
    fi
    exit
fi

name=$1
log=$work/log
# Programs of their own: of what they compare, our side alone.
arguments=()
case $name in
account | object-cache) arguments=(--rivals "$target/ours/debug/$name-rivals") ;;
esac
started=$(date +%s%N)
status=0
bounded "$bench" "$name" --scale "$scale" --rounds "$rounds" "${arguments[@]}" >"$log" 2>&1 </dev/null || status=$?
left=$(mounts)
if [ -n "$left" ]; then
    echo "it has left mounts: $left" >>"$log"
    status=1
    unmount_all
fi
took=$(printf '%6.1f s' "$(($(($(date +%s%N) - started)) / 100000000))e-1")
if [ "$status" -eq 0 ]; then
    echo "ok       $took  $name"
    grep -a 'MISSED' "$log" | sed 's/^ */                     not judged: /' || true
else
    echo "FAILED   $took  $name (status $status):"
    sed 's/^/    /' "$log"
    [ -z "${EXPERIMENTS_WRONG:-}" ] || echo "$name: status $status: $(tail -n 1 "$log")" >>"$EXPERIMENTS_WRONG"
fi >"$work/report"
cat "$work/report"
exit "$status"
