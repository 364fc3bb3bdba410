#!/usr/bin/env bash
# Builds the image of deploy/container from a Debian package, and serves a mount in it: test_image.sh PACKAGE WORK. The
# Debian that it begins with is made of packages, below WORK once, so no registry of images is asked. Steps and
# commands run in a chroot, with a namespace of mounts and one of processes.
set -euo pipefail

package=$(realpath "$1")
work=$(realpath -m "$2")
file=$(dirname "$(realpath "$0")")/../deploy/container/Containerfile
mkdir -p "$work"
export BUILDAH_ISOLATION=chroot
build() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }
step() { echo "=== $*"; }
fail() {
    echo "test_image.sh: $*" >&2
    exit 1
}
finish() {
    build rm --all >/dev/null 2>&1 || :
    build rmi --all --force >/dev/null 2>&1 || :
    rm -rf -- "$work/storage" "$work/run" "$work/context" "$work/data"
}
trap finish EXIT

if [ ! -s "$work/base.tar" ]; then
    step "a clean Debian"
    mmdebstrap --quiet --variant=apt "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/base.new.tar" \
        /etc/apt/sources.list.d/debian.sources
    mv "$work/base.new.tar" "$work/base.tar"
fi
base=$(build from scratch)
build add --quiet "$base" "$work/base.tar" / >/dev/null
build commit --quiet --rm "$base" localhost/umemcg-base >/dev/null

step "the image"
mkdir -p "$work/context" "$work/data"
cp "$package" "$work/context"
build build --file "$file" --build-arg BASE=localhost/umemcg-base --tag umemcg "$work/context" >"$work/build.log" 2>&1 ||
    fail "$(tail -20 "$work/build.log")"
build inspect --format '{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.StopSignal}}' --type image umemcg |
    grep -F '[/usr/bin/umemcg] SIGTERM' || fail "the image starts something else"

container=$(build from umemcg)
root=$(build mount "$container")
# Runs a command in the image, with processes, devices and a directory of its own.
inside() {
    # shellcheck disable=SC2016 # its parameters are those of the shell below.
    unshare --mount --pid --fork --kill-child bash -euc 'root=$1 data=$2; shift 2
        mkdir -p "$root/data"
        mount -t proc proc "$root/proc"
        mount --bind /dev "$root/dev"
        mount --bind "$data" "$root/data"
        exec chroot "$root" "$@"' bash "$root" "$work/data" "$@"
}
inside umemcg --version
[ -z "$(inside find /packages /var/lib/apt/lists -type f 2>/dev/null)" ] || fail "the image keeps what it was built from"

step "a mount in the image"
inside bash -euc 'mkdir /served
    umemcg mount /data /served --pool 64M > ready & daemon=$!
    until [ -s ready ]; do kill -0 $daemon; sleep 0.1; done
    cat ready
    echo kept > /served/file
    kill -TERM $daemon
    wait $daemon'
grep -qx kept "$work/data/file" || fail "what was written is not in the directory"
echo "test_image.sh: passed in $SECONDS s"
