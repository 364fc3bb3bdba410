#!/usr/bin/env bash
# Type-checks the crate `umemcg` for systems that this machine does not run. The standard library of each is
# checked from its source, since only this machine's comes with the toolchain. Debian's packages of a recent
# compiler and its source serve: both have the same version, and nothing that they make is shipped.
set -euo pipefail
cd "$(dirname "$0")/.."
target_dir=${CARGO_TARGET_DIR:-target}/portable
if [ ! -e /usr/lib/rustlib/src/rust/library/std ] || [ ! -x /usr/bin/cargo ]; then
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends rustc-web cargo-web rust-web-src >/dev/null
fi
for system in x86_64-pc-windows-msvc aarch64-apple-darwin; do
    echo "checking umemcg for $system"
    # Debian's compiler takes the unstable option for its own source only with this variable.
    PATH=/usr/bin:$PATH RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS="-D warnings" CARGO_TARGET_DIR=$target_dir \
        /usr/bin/cargo check --locked -Zbuild-std=std -p umemcg --target "$system"
done
