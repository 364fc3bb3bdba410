#!/usr/bin/env python3
"""Tests what a removal of the Debian package does with mounts, by what `umemcg umount` answers.

A mount that no daemon serves is made in a mount namespace of its own, and `umemcg` is a script that ends with the exit
code of each case. Run by scripts/test_deb.sh, as root: `unshare --mount test_prerm.py PRERM`."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def mount(point):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"volumes", bytes(point), b"fuse.umemcg", 0, options) != 0:
        sys.exit(f"test_prerm.py: cannot mount: {os.strerror(ctypes.get_errno())}")
    return device


def main():
    with tempfile.TemporaryDirectory() as directory:
        point = Path(directory, "a b%c")
        point.mkdir()
        device = mount(point)
        try:
            asked, program = Path(directory, "asked"), Path(directory, "umemcg")
            # The last case removes the mount: its daemon has died.
            for code, ended in [(5, 1), (3, 1), (0, 0), (4, 0)]:
                # Other mounts of this machine are none of the test's.
                ours = f'[ "$1 $2" = "umount {point}" ] || exit 0; touch "{asked}"; exit {code}'
                program.write_text(f"#!/bin/sh\n{ours}\n")
                program.chmod(0o755)
                for action, expected in [("upgrade", 0), ("remove", ended)]:
                    asked.unlink(missing_ok=True)
                    path = f"{directory}:{os.environ['PATH']}"
                    result = subprocess.run(["sh", sys.argv[1], action], env={**os.environ, "PATH": path})
                    assert result.returncode == expected, (code, action, result.returncode)
                    assert asked.exists() == (action == "remove"), (code, action)
                is_mounted = str(point).replace(" ", "\\040") in Path("/proc/self/mountinfo").read_text()
                assert is_mounted == (code != 4), code
        finally:
            # Nothing answers on the mount: without this, whatever looks at it waits for ever.
            os.close(device)
            subprocess.run(["umount", "--lazy", "--internal-only", point], stderr=subprocess.DEVNULL)


main()
