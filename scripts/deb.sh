#!/usr/bin/env bash
# Makes the Debian package: deb.sh PROGRAM GENERATED WORK. PROGRAM is the program that was built, GENERATED the directory
# of `make generated`, WORK an own directory, in which the package then is. DEB_VERSION names another version.
#
# debhelper packs a tree that is put together here: it strips, compresses, finds the dependencies on libraries and knows
# the rules of Debian, which no program of ours has to know then. Two runs make the same bytes: the only date is that of
# the last commit.
set -euo pipefail

program=$(realpath "$1")
generated=$(realpath "$2")
work=$(realpath -m "$3")
cd "$(dirname "$0")/.."
number=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
version=${DEB_VERSION:-$number-1}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

source=$work/umemcg-$number
# Those of other versions.
rm -f -- "$work"/umemcg*.deb
rm -rf -- "$source"
mkdir -p "$source"
cp -r deploy/debian "$source/debian"
mv "$source/debian/tree" "$source/tree"
tree=$source/tree

install -D -m 755 "$program" "$tree/usr/bin/umemcg"
for page in "$generated"/man/*.[1-8]; do
    install -D -m 644 "$page" "$tree/usr/share/man/man${page##*.}/${page##*/}"
done
# The helper is the program under another name: what it does is what `umemcg umount` does.
page=$tree/usr/share/man/man8/umount.fuse.umemcg.8
[ -e "$page" ] || { mkdir -p "${page%/*}" && echo ".so man1/umemcg-umount.1" >"$page"; }
install -D -m 644 "$generated/completions/umemcg.bash" "$tree/usr/share/bash-completion/completions/umemcg"
install -D -m 644 "$generated/completions/_umemcg" "$tree/usr/share/zsh/vendor-completions/_umemcg"
install -D -m 644 "$generated/completions/umemcg.fish" "$tree/usr/share/fish/vendor_completions.d/umemcg.fish"
doc=$tree/usr/share/doc/umemcg
install -D -m 644 examples/umemcg.toml "$doc/examples/umemcg.toml"
install -D -m 644 -t "$doc/examples/data" examples/data/hello
install -D -m 644 deploy/prometheus/umemcg-alerts.yml "$doc/examples/umemcg-alerts.yml"
install -D -m 644 deploy/grafana/umemcg.json "$doc/examples/umemcg.json"
scripts/licences.py | gzip -9n >"$doc/libraries.gz"
chmod 644 "$doc/libraries.gz"
install -m 644 CHANGELOG.md "$source/CHANGELOG.md"
cat >"$source/debian/changelog" <<EOF
umemcg ($version) unstable; urgency=medium

  * What has changed is in changelog.gz beside this file.

 -- $(sed -n 's/^Maintainer: //p' deploy/debian/control)  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF

cd "$source"
dpkg-buildpackage --build=binary --no-sign --no-check-builddeps >"$work/build.log" 2>&1 || {
    cat "$work/build.log" >&2
    exit 1
}
echo "$work/umemcg_${version}_$(dpkg --print-architecture).deb"
