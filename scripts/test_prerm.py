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


def check(name):
    with tempfile.TemporaryDirectory() as directory:
        point = Path(directory, name)
        point.mkdir()
        # A newline at the end of a name is a part of it.
        Path(directory, name.rstrip("\n")).mkdir(exist_ok=True)
        device = mount(point)
        try:
            asked, wrong, program = (Path(directory, name) for name in ("asked", "wrong", "umemcg"))
            # The last case removes the mount: its daemon has died.
            for code, ended in [(5, 1), (3, 1), (0, 0), (4, 0)]:
                # Other mounts of this machine are none of the test's.
                ours = f'[ "$1 $2" = "umount {point}" ] && touch "{asked}" && exit {code}'
                others = f'case "$2" in "{directory}"/*) touch "{wrong}" ;; esac'
                program.write_text(f"#!/bin/sh\n{ours}\n{others}\nexit 0\n")
                program.chmod(0o755)
                for action, expected in [("upgrade", 0), ("remove", ended)]:
                    asked.unlink(missing_ok=True)
                    path = f"{directory}:{os.environ['PATH']}"
                    result = subprocess.run(["sh", sys.argv[1], action], env={**os.environ, "PATH": path})
                    assert result.returncode == expected, (code, action, result.returncode)
                    assert asked.exists() == (action == "remove"), (code, action)
                    assert not wrong.exists(), "another path was to be unmounted"
                shown = str(point).replace(" ", "\\040").replace("\n", "\\012")
                is_mounted = f" {shown} " in Path("/proc/self/mountinfo").read_text()
                assert is_mounted == (code != 4), code
        finally:
            # Nothing answers on the mount: without this, whatever looks at it waits for ever.
            os.close(device)
            subprocess.run(["umount", "--lazy", "--internal-only", point], stderr=subprocess.DEVNULL)


check("a b%c")
# A pattern that the names of other files match.
check("*")
# A substitution of the shell drops a newline at its end.
check("a\n")
