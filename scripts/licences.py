#!/usr/bin/env python3
"""Prints the libraries in the program `umemcg`, with the texts of their licences, each text once.

Used by scripts/deb.sh: who passes the program on has to pass these on with it."""

import json
import subprocess
from pathlib import Path

WHICH = ["--locked", "-p", "umemcg-cli", "--features", "object,csi"]
NAMES = ("licen", "copying", "notice", "copyright", "unlicense")


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, capture_output=True, text=True).stdout


def main():
    # Those that are linked, without what builds and tests need.
    lines = cargo("tree", *WHICH, "--edges", "normal", "--prefix", "none", "--format", "{p}").splitlines()
    linked = {tuple(line.split()[:2]) for line in lines if line}
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--all-features"))
    users_of = {}
    print("The libraries that the program umemcg contains, and their licences.\n")
    for package in sorted(metadata["packages"], key=lambda package: (package["name"], package["version"])):
        if package["source"] is None or (package["name"], "v" + package["version"]) not in linked:
            continue
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or package['license_file']}")
        place = Path(package["manifest_path"]).parent
        for file in sorted(place.iterdir()):
            if file.is_file() and file.name.lower().startswith(NAMES):
                text = file.read_text(errors="replace").strip()
                users_of.setdefault(text, []).append(name)
    for text, users in users_of.items():
        print(f"\n{'=' * 78}\nOf {', '.join(users)}:\n\n{text}")


main()
