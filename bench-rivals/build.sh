#!/usr/bin/env bash
# Builds the rivals of `umemcg-bench fuse`, `object-cache` and `account` into TARGET/rivals:
#   account-rivals  Account and DataFusion's memory pools, in one program (some minutes)
#   object-cache-rivals  ObjectCache and the cache crates, in one program
#   fuser-memory    two files served from memory through the crate fuser: the limit
#   passthrough_hp  libfuse's example, whose source belongs to libfuse: it is taken from the installed documentation, from
#                   PASSTHROUGH_HP_SOURCE, or fetched as Debian's source package, and never kept here
# A rival whose build fails is reported on stderr and left out; the benchmark then reports it as missing.
set -euo pipefail
cd "$(dirname "$0")"
target=$(realpath -m "${TARGET:-../target}")
out=$target/rivals
mkdir -p "$out"

if cargo build --release --locked --quiet --target-dir "$target/rivals-build" >&2; then
    cp "$target/rivals-build/release/fuser-memory" "$out/"
else
    echo "build.sh: fuser-memory could not be built" >&2
fi

if (cd object-cache && cargo build --release --locked --quiet --target-dir "$target/rivals-build") >&2; then
    cp "$target/rivals-build/release/object-cache-rivals" "$out/"
else
    echo "build.sh: object-cache-rivals could not be built" >&2
fi

if (cd account && cargo build --release --locked --quiet --target-dir "$target/rivals-build") >&2; then
    cp "$target/rivals-build/release/account-rivals" "$out/"
else
    echo "build.sh: account-rivals could not be built" >&2
fi

[ -x "$out/passthrough_hp" ] && exit 0
missing() {
    echo "build.sh: passthrough_hp could not be built: $1" >&2
    exit 0
}
command -v g++ >/dev/null || missing "no g++"
pkg-config --exists fuse3 || missing "no libfuse3-dev"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The source, for the installed version.
examples=/usr/share/doc/libfuse3-dev/examples
if [ -n "${PASSTHROUGH_HP_SOURCE:-}" ]; then
    cp "$PASSTHROUGH_HP_SOURCE" "$work/passthrough_hp.cc"
elif [ -e "$examples/passthrough_hp.cc" ]; then
    cp "$examples/passthrough_hp.cc" "$work/"
elif [ -e "$examples/passthrough_hp.cc.gz" ]; then
    gunzip -c "$examples/passthrough_hp.cc.gz" >"$work/passthrough_hp.cc"
else
    # The machine's own sources, asked for source packages; its configuration stays as it is.
    command -v apt-get >/dev/null || missing "no source; set PASSTHROUGH_HP_SOURCE"
    mkdir -p "$work/lists/partial" "$work/parts"
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ -f "$list" ] || continue
        name=$(basename "$list")
        sed -E 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$list" >"$work/parts/${name/%sources.list/main.list}"
    done
    apt=(-q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts"
        -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
    (cd "$work" && apt-get "${apt[@]}" update && apt-get "${apt[@]}" source --download-only fuse3) >&2 ||
        missing "the source package fuse3 cannot be fetched"
    tar -xf "$work"/fuse3_*.orig.tar.?z -C "$work" --wildcards '*/example/passthrough_hp.cc' --strip-components=2 ||
        missing "the source package has no passthrough_hp.cc"
fi
# Its one header besides libfuse's.
flags=()
if [ ! -e /usr/include/cxxopts.hpp ]; then
    (cd "$work" && apt-get -q download libcxxopts-dev && dpkg-deb -x libcxxopts-dev_*.deb cxxopts) >&2 ||
        missing "no cxxopts.hpp (libcxxopts-dev)"
    flags+=("-I$work/cxxopts/usr/include")
fi
if grep -qs 'no_such_option' /usr/include/cxxopts.hpp "$work/cxxopts/usr/include/cxxopts.hpp"; then
    # Version 3 renamed an exception, and leaves the options in argv where version 2 took them out.
    flags+=("-Doption_not_exists_exception=exceptions::no_such_option")
    sed -i 's/return parser.parse(argc, argv);/{ auto parsed = parser.parse(argc, argv); argv[1] = argv[argc - 2]; \
argv[2] = argv[argc - 1]; argc = 3; return parsed; }/' "$work/passthrough_hp.cc"
fi
# shellcheck disable=SC2046
g++ -O2 -std=c++17 -DHAVE_POSIX_FALLOCATE -DHAVE_SETXATTR -include iostream "${flags[@]}" \
    $(pkg-config --cflags fuse3) "$work/passthrough_hp.cc" -o "$out/passthrough_hp" $(pkg-config --libs fuse3) >&2 ||
    missing "it does not compile"
