#!/usr/bin/env bash
# The benchmarks of the hot paths, each against its yardstick in the same run. BENCH_SCALE shrinks the work.
set -euo pipefail
cd "$(dirname "$0")/.."
bench=$(realpath -m "${TARGET:-target}")/release/umemcg-bench
scale=${BENCH_SCALE:-1}
failed=0
names=(hit charge metrics fuse tenants)
# Only where bench-rivals/build.sh has built what it compares with.
for name in account object-cache; do
    [ ! -x "$(dirname "$bench")/../rivals/$name-rivals" ] || names+=("$name")
done
for name in "${names[@]}"; do
    "$bench" "$name" --scale "$scale" || failed=1
done
exit "$failed"
