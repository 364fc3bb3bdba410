#!/usr/bin/env bash
# Installs the C library, which is built in $1 (a cargo profile's directory), below $2 (PREFIX); $DESTDIR goes before it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
built=$1 prefix=$2
into=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -1)
abi=$(sed -n 's/^#define UMEMCG_ABI_VERSION //p' "$here/umemcg.h")

install -D -m 644 "$here/umemcg.h" "$into/include/umemcg.h"
install -D -m 755 "$built/libumemcg_c.so" "$into/lib/libumemcg.so.$version"
ln -sf "libumemcg.so.$version" "$into/lib/libumemcg.so.$abi"
ln -sf "libumemcg.so.$abi" "$into/lib/libumemcg.so"
install -m 644 "$built/libumemcg_c.a" "$into/lib/libumemcg.a"
install -d "$into/lib/pkgconfig"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" "$here/umemcg.pc.in" >"$into/lib/pkgconfig/umemcg.pc"
