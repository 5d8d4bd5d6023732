"""A program that uses all the CPU that it gets, in the groups of its arguments, until killed.

It joins the groups, prints a line, and begins when it reads one.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Join the groups, wait for the line, and burn."""
    for group in sys.argv[1:]:
        Path(group, "cgroup.procs").write_text("0")
    sys.stdout.write("\n")
    sys.stdout.flush()
    sys.stdin.readline()
    while True:
        pass


if __name__ == "__main__":
    main()
