#!/usr/bin/env bash
# Tests a Debian package as a machine uses it: test_deb.sh PACKAGE HIGHER WORK. HIGHER is the same package with a higher
# version. A clean Debian is made below WORK once; a test changes only a layer above it. systemd runs there as process 1.
set -euo pipefail

package=$(realpath "$1")
higher=$(realpath "$2")
work=$(realpath -m "$3")
unit=umemcg@demo.service
point=/mnt/umemcg/demo
control=/run/umemcg-control/demo
here=$(dirname "$(realpath "$0")")
root=$work/root
layer=$work/layer
mkdir -p "$work"

step() { echo "=== $*"; }
fail() {
    echo "test_deb.sh: $*" >&2
    exit 1
}
# Waits until a command succeeds, for five minutes at most.
until_true() {
    local end=$((SECONDS + 300))
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "in five minutes not: $*"
        sleep 0.2
    done
}
# Runs a command in the container.
inside() { nsenter --target "$init" --all --root --wdns=/ -- env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
main_process() { inside systemctl show --property=MainPID --value "$unit"; }
# Prints the files that a package can leave behind. dpkg, systemd and the caches of others keep files of their own.
files() {
    { inside find /etc /usr /lib /opt /mnt /srv /var /run/umemcg /run/umemcg-control -xdev \
        \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /var/tmp -o -path /var/lib/systemd \
        -o -path /var/lib/prometheus \) -prune -o -print 2>/dev/null || :; } | sort
}
# Fails unless the files are those before the package.
as_before() {
    files >"$layer/after"
    diff "$layer/before" "$layer/after" || fail "$1 leaves files behind, or takes too many"
}
booted() {
    init=$(pgrep -P "$container" | head -1) && [ -n "$init" ] &&
        inside systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded'
}
finish() {
    [ "$?" = 0 ] || [ -z "${init:-}" ] || inside journalctl --quiet --no-pager --unit='umemcg@*' >&2 || :
    if [ -n "${container:-}" ]; then
        kill "$container" 2>/dev/null || :
        wait "$container" 2>/dev/null || :
    fi
    umount "$layer/root" 2>/dev/null || :
    rm -rf -- "$layer"
}
trap finish EXIT

step lintian
lintian --fail-on error,warning --allow-root "$package"

step "removal asks for each mount"
unshare --mount "$here/test_prerm.py" "$here/../deploy/debian/umemcg.prerm" 2>"$work/prerm.log" ||
    fail "$(cat "$work/prerm.log")"

# From the mirror of this machine, with the packages that apt will take from its cache: the container has no network.
if [ ! -e "$root/.complete" ]; then
    step "a clean Debian"
    rm -rf -- "$root"
    mmdebstrap --quiet --variant=apt --skip=cleanup/apt --dpkgopt=force-unsafe-io \
        --include=ca-certificates,systemd,systemd-sysv,dbus,man-db,bash-completion,zsh,fish,curl,procps \
        --customize-hook='chroot "$1" apt-get install --quiet --yes --download-only fuse3 >&2' \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" /etc/apt/sources.list.d/debian.sources
    touch "$root/.complete"
fi

step "systemd as process 1"
mkdir -p "$layer/"{upper,below,root}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$layer/upper,workdir=$layer/below" "$layer/root"
mkdir -p "$layer/root/packages/newer"
cp "$package" "$layer/root/packages"
cp "$higher" "$layer/root/packages/newer"
# As on a machine of its own: what the unit does not allow is refused by the unit, not by the container. Directories
# that are served are on a file system that can be watched, which the layer is not.
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --boot --register=no --keep-unit --private-network \
    --capability=all --system-call-filter=@known --bind=/dev/fuse --tmpfs=/srv \
    --machine="umemcg-test-$$" --directory="$layer/root" --console=pipe >"$work/boot.log" 2>&1 </dev/null &
container=$!
until_true booted
# Otherwise it would come with the package, and stay.
inside apt-get install -qq --yes --no-download fuse3 >"$work/apt.log" 2>&1
files >"$layer/before"

step "the walk of docs/operating.md"
"$here/walk.py" "$here/../docs/operating.md" "A walk from a fresh machine" \
    nsenter --target "$init" --all --root --wdns=/packages -- env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 |
    grep -v '^(Reading database .*[.%]'
inside rm -r /srv/data
as_before "the walk"

step "the package"
inside apt-get install -qq --yes "/packages/${package##*/}" >>"$work/apt.log" 2>&1
inside umemcg --version
inside man --pager=cat umemcg | grep umemcg >/dev/null
inside man --pager=cat umount.fuse.umemcg | grep umemcg >/dev/null
inside man --pager=cat mount.fuse.umemcg | grep fstab >/dev/null
inside bash -c '. /usr/share/bash-completion/bash_completion && _completion_loader umemcg; complete -p umemcg'
inside zsh -fc 'autoload -U compinit && compinit -D && echo "zsh: ${_comps[umemcg]}"' | grep _umemcg
inside fish -c 'complete --do-complete "umemcg "' >/dev/null
inside systemctl is-enabled "$unit" 2>/dev/null && fail "the package has enabled a unit"

step "the unit"
inside systemd-analyze verify "/lib/systemd/system/umemcg@.service"
# Sandboxing that needs a mount namespace would hide the mounts from the host: less than 6 is what remains.
inside systemd-analyze security --offline=true --threshold=60 "/lib/systemd/system/umemcg@.service" | tail -1
inside sed -i '1i log = "info"' /etc/umemcg/demo.toml
inside systemctl enable --quiet --now "$unit"
inside systemctl show --property=Type,ActiveState,WatchdogUSec,StatusText "$unit"
inside mountpoint "$point"

step "a reload: a limit and a volume more"
inside bash -c 'mkdir /srv/kept && sed -i "/memory.max/s/64M/48M/" /etc/umemcg/demo.toml &&
    printf "[volumes.kept]\ndir = \"/srv/kept\"\n" >>/etc/umemcg/demo.toml'
inside systemctl reload "$unit"
[ "$(inside cat "$control/services/memory.max")" = $((48 << 20)) ] || fail "the limit has not changed"
inside bash -c 'echo "[" >>/etc/umemcg/demo.toml'
inside systemctl reload "$unit" 2>/dev/null && fail "a reload of a mistake succeeds"
inside sed -i '$d' /etc/umemcg/demo.toml
inside systemctl reload "$unit"

step "a daemon that is stuck is ended and started again"
is_served_anew() {
    local now
    now=$(main_process)
    [ "$now" != "$1" ] && [ "$now" != 0 ] && [ "$(inside timeout 5 cat "$point/kept/before" 2>/dev/null)" = kept ]
}
inside bash -c "echo kept >$point/kept/before && umemcg sync $point"
stuck=$(main_process)
inside kill -STOP "$stuck"
until_true is_served_anew "$stuck"
inside journalctl --quiet --no-pager --output=cat --unit="$unit" | grep -i 'watchdog timeout'
[ "$(inside systemctl show --property=NRestarts --value "$unit")" = 1 ] || fail "systemd has not restarted the daemon"
inside rm "$point/kept/before"

step "what another program changes in the directory is seen"
inside bash -c "echo one >/srv/kept/outside; cat $point/kept/outside; echo other >/srv/kept/outside" >/dev/null
is_other() { [ "$(inside cat "$point/kept/outside")" = other ]; }
until_true is_other
inside rm "$point/kept/outside"

step "an upgrade while a file on the mount is written"
before=$(main_process)
inside bash -c "exec > $point/kept/file; until [ -e /enough ]; do echo line || exit 1; sleep 0.02; done" &
writer=$!
until_true inside test -s "$point/kept/file"
inside apt-get install -qq --yes "/packages/newer/${higher##*/}" >>"$work/apt.log" 2>&1
inside dpkg-query --show umemcg
size=$(inside stat --format=%s "$point/kept/file")
grown() { [ "$(inside stat --format=%s "$point/kept/file")" -gt "$size" ]; }
until_true grown
[ "$(main_process)" = "$before" ] || fail "the upgrade has restarted the daemon"
inside systemctl is-active --quiet "$unit"
inside grep -q '"48M"' /etc/umemcg/demo.toml || fail "the upgrade has changed the configuration"

step "mounts of /etc/fstab"
inside bash -c 'mkdir /srv/table /mnt/table && cp /etc/fstab /etc/fstab.before 2>/dev/null || :
    echo "/srv/table /mnt/table fuse.umemcg pool=64M,x-systemd.requires-mounts-for=/srv 0 0" >>/etc/fstab'
inside mount -a
inside mount -a
inside findmnt --noheadings --output SOURCE,FSTYPE /mnt/table
[ "$(inside grep -c ' /mnt/table ' /proc/self/mountinfo)" = 1 ] || fail "mount -a mounts it twice"
inside bash -c 'echo one >/mnt/table/file && umount /mnt/table && grep one /srv/table/file' >/dev/null
# As at the start of the machine.
inside systemctl daemon-reload
inside systemctl start mnt-table.mount
inside bash -c 'echo two >/mnt/table/file && systemctl stop mnt-table.mount && grep two /srv/table/file' >/dev/null
inside mountpoint --quiet /mnt/table && fail "still mounted"
inside bash -c 'rm -r /srv/table /mnt/table && sed -i /fuse.umemcg/d /etc/fstab && rm -f /etc/fstab.before'
inside systemctl daemon-reload

step "a removal while it is written is refused"
inside apt-get remove -qq --yes umemcg >>"$work/apt.log" 2>&1 && fail "the package is removed under a busy mount"
inside mountpoint --quiet "$point"
inside umemcg --version
inside touch /enough
wait "$writer" || fail "the writer saw an error"
inside rm /enough

step "the end of the unit stores what was written"
inside bash -c "head -c 32M /dev/urandom >/random; cp /random $point/kept/random; systemctl stop $unit; cmp /random /srv/kept/random"
inside mountpoint --quiet "$point" && fail "still mounted"
inside systemctl start "$unit"
inside bash -c "cmp /random $point/kept/random && rm /random"

step "removal stores what was written and ends the daemon, purge leaves nothing"
inside bash -c "head -c 1M /dev/urandom >/random; cp /random $point/kept/random"
inside apt-get remove -qq --yes umemcg >>"$work/apt.log" 2>&1
inside cmp /random /srv/kept/random
inside mountpoint --quiet "$point" && fail "still mounted"
inside test -e /etc/umemcg/demo.toml
inside apt-get purge -qq --yes umemcg >>"$work/apt.log" 2>&1
inside rm -r /random /srv/kept
as_before "a purge"
# Directories are watched, which needs system calls and capabilities that few services have.
inside journalctl --quiet --no-pager --output=cat _COMM=umemcg | grep 'cannot watch' && fail "the daemon cannot watch a directory"
# What else the sandbox refuses would be warnings of the daemon's; those of the mistake above are the only ones.
warnings=$(inside journalctl --quiet --no-pager --output=cat --priority=warning _COMM=umemcg |
    grep -vE 'TOML parse error|^ *[0-9]* ?\||^unquoted keys') || :
[ -z "$warnings" ] || fail "the daemon warns: $warnings"
echo "test_deb.sh: passed in $SECONDS s"
