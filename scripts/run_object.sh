#!/usr/bin/env bash
# Shows a bucket as a volume of two tenants: starts a server of the S3 protocol, mounts its bucket, lets one tenant stream
# ten times the pool while the other reads what it has cached, and prints who held what. Cleans up, also after Ctrl-C.
# Arguments: the program (built with the feature object), and the virtual environment with moto.
set -euo pipefail

program=$1 servers=$2
dir=$(mktemp -d)
pids=()
cleanup() {
    "$program" umount "$dir/mnt" >/dev/null 2>&1 || true
    [ "${#pids[@]}" -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }

export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo
port=$(python3 -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
endpoint=http://127.0.0.1:$port
say "a server of the S3 protocol at $endpoint, with a bucket"
"$servers/bin/moto_server" -H 127.0.0.1 -p "$port" >"$dir/server.log" 2>&1 &
pids+=($!)
"$servers/bin/python" - "$endpoint" <<'PYTHON'
import sys, time, boto3
for attempt in range(100):
    try:
        client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1")
        client.create_bucket(Bucket="demo")
        break
    except Exception:
        time.sleep(0.2)
else:
    raise SystemExit("the server does not answer")
client.put_object(Bucket="demo", Key="models/large", Body=bytes(64 << 20))
for nr in range(8):
    client.put_object(Bucket="demo", Key=f"models/small/{nr}", Body=bytes([nr]) * (1 << 20))
print("models/large (64 MiB) and models/small/0 to 7 (1 MiB each)")
PYTHON

say "umemcg mount s3://demo/models, with a pool of 64 MiB and two groups of 16 MiB"
mkdir "$dir/mnt" "$dir/cg"
"$program" mount s3://demo/models "$dir/mnt" --control "$dir/cg" --pool 64M --endpoint "$endpoint" --region us-east-1 \
    >"$dir/mount.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
    grep -q "is served" "$dir/mount.log" && break
    sleep 0.1
done
grep -q "is served" "$dir/mount.log" || { cat "$dir/mount.log" >&2; exit 1; }
for tenant in streams stays; do
    mkdir "$dir/cg/$tenant"
    echo 16m >"$dir/cg/$tenant/memory.max"
done
in_group() {
    local group=$1
    shift
    bash -c 'echo $$ > "$0"; exec "${@:1}"' "$dir/cg/$group/cgroup.procs" "$@"
}
figure() { awk -v key="total_$2" '$1 == key { print $2 }' "$dir/cg/$1/memory.stat"; }

say "'stays' reads 8 MiB; then 'streams' reads 640 MiB, and 'stays' its 8 MiB again and again"
in_group stays bash -c "cat '$dir'/mnt/small/* > /dev/null"
missed=$(figure stays cache_miss)
in_group streams bash -c "for i in 1 2 3 4 5 6 7 8 9 10; do cat '$dir/mnt/large' > /dev/null; done" &
stream=$!
nr=0
while kill -0 "$stream" 2>/dev/null; do
    in_group stays bash -c "cat '$dir'/mnt/small/* > /dev/null"
    nr=$((nr + 1))
done
wait "$stream"
echo "'stays' read them $nr times: $(figure stays cache_hit) pages from memory, $(($(figure stays cache_miss) - missed)) asked of the store again"

say "umemcg top"
"$program" top --once --control "$dir/cg"
say "what the store was asked"
"$program" metrics "$dir/mnt" | grep -E '^umemcg_store_(requests|read|failures)'
say "done; unmounting"
