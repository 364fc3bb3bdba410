#!/usr/bin/env bash
# Tests the CSI plugin from outside: csi-sanity against a daemon and a plugin on this machine, and the manifests against
# the schemas of Kubernetes. Cleans up. Arguments: the program (built with the features csi and object), and a directory for tools.
set -euo pipefail

program=$1 tools=$2
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$tools"
# The version that the interface definition in crates/umemcg-csi/proto is of.
[ -x "$tools/csi-sanity" ] ||
    GOBIN="$tools" go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0
[ -x "$tools/validate/bin/kubernetes-validate" ] || {
    python3 -m venv "$tools/validate"
    "$tools/validate/bin/pip" install -q kubernetes-validate==1.37.0
}

echo "== manifests"
resources=$(sed -n 's/^  - \(.*\.yaml\)$/\1/p' "$here/deploy/kubernetes/base/kustomization.yaml")
for file in "$here"/deploy/kubernetes/base/*.yaml; do
    name=$(basename "$file")
    [ "$name" = kustomization.yaml ] || grep -qx "$name" <<<"$resources" ||
        { echo "FAILED: $name is not in kustomization.yaml" >&2; exit 1; }
done
images=$(sed -n 's/^  - name: \(.*\)$/\1/p' "$here/deploy/kubernetes/base/kustomization.yaml")
for image in $(sed -nE 's/^ +image: ([^:]+).*$/\1/p' "$here"/deploy/kubernetes/base/*.yaml | sort -u); do
    grep -qx "$image" <<<"$images" ||
        { echo "FAILED: the image $image is not in kustomization.yaml, where its host is set" >&2; exit 1; }
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/Cargo.toml")
grep -qF "newTag: \"$version\"" "$here/deploy/kubernetes/base/kustomization.yaml" ||
    { echo "FAILED: kustomization.yaml names another version than $version" >&2; exit 1; }
for name in $resources; do
    "$tools/validate/bin/kubernetes-validate" --strict --no-warn "$here/deploy/kubernetes/base/$name"
done
"$tools/validate/bin/kubernetes-validate" --strict --no-warn "$here"/deploy/kubernetes/examples/*.yaml

echo "== csi-sanity"
dir=$(mktemp -d)
pids=()
cleanup() {
    [ "${#pids[@]}" -lt 2 ] || kill "${pids[@]:1}" 2>/dev/null || true
    "$program" umount "$dir/mnt" >/dev/null 2>&1 || true
    [ "${#pids[@]}" -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir "$dir/mnt" "$dir/cg" "$dir/store" "$dir/staged"
await() {
    for _ in $(seq 600); do
        ! grep -q "$2" "$1" || return 0
        sleep 0.1
    done
    cat "$1" >&2
    return 1
}
# A sandbox may hide the root directory of its first process.
UMEMCG_NODE_ROOT=/ "$program" mount --volumes "$dir/mnt" --control "$dir/cg" --socket "$dir/admin.sock" --pool 256M >"$dir/daemon" 2>&1 &
pids+=($!)
await "$dir/daemon" "served on"
total=0
# Both kinds of volumes that a StorageClass makes.
for kind in tmpfs store; do
    "$program" csi --controller --endpoint "unix://$dir/csi.sock" --node-id node-1 --mount "$dir/mnt" \
        --control "$dir/cg" --socket "$dir/admin.sock" --state "$dir/state" >"$dir/plugin" 2>&1 &
    plugin=$!
    pids+=("$plugin")
    await "$dir/plugin" "serves on"
    {
        echo "type: $kind"
        [ "$kind" = tmpfs ] || printf 'store: file://%s/store\nstaging: %s/staged\n' "$dir" "$dir"
    } >"$dir/parameters.yaml"
    "$tools/csi-sanity" --csi.endpoint="unix://$dir/csi.sock" --csi.testvolumeparameters="$dir/parameters.yaml" \
        --csi.mountdir="$dir/target" --csi.stagingdir="$dir/staging" --ginkgo.no-color >"$dir/sanity" 2>&1 || {
        cat "$dir/sanity" "$dir/plugin" >&2
        exit 1
    }
    echo "$kind: $(grep '^Ran ' "$dir/sanity")"
    passed=$(sed -nE 's/.*-- ([0-9]+) Passed.*/\1/p' "$dir/sanity")
    total=$((total + passed))
    left=$(ls -A "$dir/mnt" "$dir/state/staged" "$dir/state/published" | sed '/:$/d; /^$/d')
    [ -z "$left" ] || { echo "FAILED: volumes or records are left: $left" >&2; exit 1; }
    kill "$plugin"
    wait "$plugin" || { cat "$dir/plugin" >&2; exit 1; }
done
[ "$total" -ge 60 ] || { echo "FAILED: only $total passed" >&2; exit 1; }
echo "csi: $total passed, 0 failed"
