#!/usr/bin/env bash
# Every benchmark and experiment that umemcg-bench has, one after the other, and what came of them as docs/results.md. With
# arguments, only those; the page then has these and what earlier runs left of the others. EXPERIMENTS_SCALE shrinks the work, EXPERIMENTS_ROUNDS says how
# many samples each side gives.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${TARGET:-target}")
bench=$target/release/umemcg-bench
scale=${EXPERIMENTS_SCALE:-1}
page=${RESULTS:-docs/results.md}
reports=$target/experiments
mkdir -p "$reports" "$(dirname "$page")"
mapfile -t all < <("$bench" names)
failed=0
[ $# -gt 0 ] && chosen=("$@") || chosen=("${all[@]}")
for name in "${chosen[@]}"; do
    echo "=== $name" >&2
    if "$bench" "$name" --scale "$scale" ${EXPERIMENTS_ROUNDS:+--rounds "$EXPERIMENTS_ROUNDS"} --json >"$reports/$name.json.new"; then
        mv "$reports/$name.json.new" "$reports/$name.json"
    else
        rm -f "$reports/$name.json.new"
        failed=1
    fi
done
present=()
for name in "${all[@]}"; do
    [ ! -e "$reports/$name.json" ] || present+=("$reports/$name.json")
done
[ ${#present[@]} -gt 0 ] || { echo "experiments.sh: nothing was measured" >&2; exit 1; }
"$bench" results "$page" --command "make experiments" "${present[@]}"
echo "experiments.sh: $page says what came of it" >&2
exit "$failed"
