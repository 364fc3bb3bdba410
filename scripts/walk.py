#!/usr/bin/env python3
"""Runs the commands of a document: walk.py PAGE HEADING COMMAND... gives the `sh` blocks of a chapter to one shell,
COMMAND, and compares what each prints with the `text` block below it. There `…` stands for any text of a line, and
alone on a line for any further lines."""

import re
import subprocess
import sys

END_OF_BLOCK = "--- end of block ---\n"


def steps_of(page, heading):
    """Returns the commands of a chapter, and what each prints, if the chapter says so."""
    chapter = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    if not chapter:
        sys.exit(f"walk.py: no chapter {heading}")
    steps = []
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", chapter[1], re.M | re.S):
        if kind == "sh":
            steps.append([block, None])
        elif kind == "text":
            steps[-1][1] = block
    return steps


def is_as_shown(printed, shown):
    pattern = "".join(
        r"(?:.*\n)*" if line == "…\n" else re.escape(line).replace("…", ".*") for line in shown.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, printed) is not None


def main():
    page, heading, *command = sys.argv[1:]
    steps = steps_of(open(page, encoding="utf-8").read(), heading)
    script = "set -euo pipefail\n" + "".join(f"{block}echo -n '{END_OF_BLOCK}'\n" for block, _ in steps)
    ended = subprocess.run([*command, "bash", "-c", script], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    outputs = ended.stdout.split(END_OF_BLOCK)
    for (block, shown), printed in zip(steps, outputs):
        print(re.sub("^", "# ", block.rstrip(), flags=re.M) + "\n" + printed, end="")
        if shown is not None and not is_as_shown(printed, shown):
            sys.exit(f"walk.py: {page} shows instead:\n{shown}")
    if ended.returncode != 0 or len(outputs) != len(steps) + 1:
        sys.exit(f"walk.py: block {len(outputs)} of {page} ends with {ended.returncode}")


if __name__ == "__main__":
    main()
