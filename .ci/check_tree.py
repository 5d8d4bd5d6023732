"""Refuse hand-written files over 300 lines and folders with more than 12 source files."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

MAX_LINES = 300
MAX_FILES = 12
SOURCES = {".py", ".c", ".h", ".proto", ".css", ".js", ".html", ".sh"}


def main() -> int:
    """Print every offence; return 1 if there is one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    sources = [
        Path(name)
        for name in listed
        if Path(name).suffix in SOURCES and "gen" not in Path(name).parts and Path(name).is_file()
    ]
    offences = []
    for path in sources:
        lines = len(path.read_text(encoding="utf-8").splitlines())
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
