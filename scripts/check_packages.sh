#!/usr/bin/env bash
# Type-checks what the crates' packages hold, as one workspace with all features: a file that a package lacks is missed here.
# Nothing is linked; `make package` builds each as the registry's users would, in several times the time.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=$TARGET/package
unpacked=$packages/unpacked
rm -rf "$unpacked" "$packages"/*.crate
mkdir -p "$unpacked"
cargo package --workspace --locked --allow-dirty --no-verify --quiet --target-dir "$TARGET"
for package in "$packages"/*.crate; do tar -xzf "$package" -C "$unpacked"; done
{
    printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n\n[patch.crates-io]\n'
    # Each needs the others in the version that is published with it.
    for crate in "$unpacked"/*/; do
        name=$(basename "$crate")
        printf '%s = { path = "%s" }\n' "${name%-*}" "$name"
    done
    # With the same profiles, what `make lint` has checked of other projects' libraries is not checked again.
    sed -n '/^\[profile/,$p' Cargo.toml
} >"$unpacked/Cargo.toml"
cp Cargo.lock "$unpacked/Cargo.lock"
cargo check --manifest-path "$unpacked/Cargo.toml" --workspace --all-features --target-dir "$TARGET"
