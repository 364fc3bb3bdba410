#!/usr/bin/env bash
# Installs the package as `pip install ./python` does, in a clean virtual environment $1, and tests it there.
# CARGO_TARGET_DIR says where the native part is built. Ends with one line: `test result: ok. N passed; M failed`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Longest that the tests may take; each waits for less.
SECONDS_MAX=600

python3 -m venv --clear "$venv"
"$venv/bin/pip" install -q 'pytest>=8,<10' 'mypy>=1.18,<3'
# The development profile: it builds fast, and its assertions (lock ranks, accounting) are on.
MATURIN_PEP517_ARGS="--profile dev --locked" "$venv/bin/pip" install -q "$here"

cd "$here"
status=0
timeout --kill-after=10 "$SECONDS_MAX" "$venv/bin/pytest" -q >"$log" 2>&1 || status=$?
cat "$log"
passed=$(sed -nE 's/^.*\b([0-9]+) passed.*/\1/p' "$log" | tail -1)
failed=$(sed -nE 's/^.*\b([0-9]+) (failed|errors?)\b.*/\1/p' "$log" | tail -1)
if "$venv/bin/mypy"; then
    passed=$((${passed:-0} + 1))
else
    failed=$((${failed:-0} + 1)) status=1
fi
result=ok
[ "$status" -eq 0 ] || { result=FAILED failed=${failed:-1}; }
echo "test result: $result. ${passed:-0} passed; ${failed:-0} failed"
exit "$status"
