"""Refuse hand-written files over 600 lines and folders with more than 20 source files."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 600
MAX_FILES = 20
SOURCES = {".py", ".c", ".h", ".proto", ".css", ".js", ".html", ".sh"}
MADE = re.compile(r"\..*|__pycache__|build|gen|xpu-agent-out|.*\.egg-info")
ROOT = Path(__file__).resolve().parent.parent


def hand_written(root: Path) -> Iterator[Path]:
    """Yield the source files below a folder, without what tools make; git need not be there."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name == ".ci" or not MADE.fullmatch(name)]
        yield from (Path(folder, name) for name in names if Path(name).suffix in SOURCES)


def main() -> int:
    """Print every offence; return 1 if there is one."""
    sources = [path.relative_to(ROOT) for path in hand_written(ROOT)]
    offences = []
    for path in sources:
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            offences.append(f"{path}: {lines} lines, at most {MAX_LINES}: split it by thought")
    # an __init__.py names a package, it is no thought of its own
    folders = Counter(path.parent for path in sources if path.name != "__init__.py")
    offences += [
        f"{folder}/: {count} source files, at most {MAX_FILES}: group them"
        for folder, count in folders.items()
        if count > MAX_FILES
    ]
    print("\n".join(sorted(offences)) or f"{len(sources)} source files are within their limits")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
