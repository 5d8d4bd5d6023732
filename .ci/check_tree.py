"""Refuse files over 600 lines, folders with over 20 source files, deep folders, and dead names.

A dead name is a path or dotted name below `agent` or `plugins` that a document names and that does
not exist.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 600
MAX_FILES = 20
MAX_DEPTH = 3  # folders below a package
PACKAGES = ("agent", "plugins")
SOURCES = {".py", ".c", ".h", ".proto", ".css", ".js", ".html", ".sh"}
MADE = re.compile(r"\..*|__pycache__|build|gen|xpu-agent-out|.*\.egg-info")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "plugins/README.md", "docs/*.md", "docs/*.svg")
NAMED = re.compile(r"(?<![\w./~-])(?:agent|plugins)(?:/[\w.]+(?:/[\w.]+)*|(?:\.\w+)+)")
# the new vendor of examples, and names of other projects
NOT_OURS = re.compile(r".*\bacme\b.*|plugins\.noderesource\.dev")
ROOT = Path(__file__).resolve().parent.parent


def hand_written(root: Path) -> Iterator[Path]:
    """Yield the source files below a folder, without what tools make; git need not be there."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name == ".ci" or not MADE.fullmatch(name)]
        yield from (Path(folder, name) for name in names if Path(name).suffix in SOURCES)


def find_offences(root: Path, sources: list[Path]) -> list[str]:
    """Return one line for each file or folder that is over a limit."""
    offences = []
    for path in sources:
        lines = len((root / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            offences.append(f"{path}: {lines} lines, at most {MAX_LINES}: split it by thought")
    # an __init__.py names a package, it is no thought of its own
    folders = Counter(path.parent for path in sources if path.name != "__init__.py")
    offences += [
        f"{folder}/: {count} source files, at most {MAX_FILES}: group them"
        for folder, count in folders.items()
        if count > MAX_FILES
    ]
    offences += [
        f"{folder}/: {len(folder.parts) - 1} folders deep, at most {MAX_DEPTH}: flatten it"
        for folder in {path.parent for path in sources}
        if folder.parts[:1] and folder.parts[0] in PACKAGES and len(folder.parts) - 1 > MAX_DEPTH
    ]
    return sorted(offences)


def find_dead_names(root: Path) -> list[str]:
    """Return one line for each name in a document that stands for nothing below the root."""
    return [
        f"{document.relative_to(root)}: {name} does not exist: name the module that took its place"
        for pattern in DOCUMENTS
        for document in sorted(root.glob(pattern))
        for name in sorted(set(NAMED.findall(document.read_text(encoding="utf-8"))))
        if not NOT_OURS.fullmatch(name) and not exists(root, name.rstrip("."))
    ]


def exists(root: Path, name: str) -> bool:
    """Return whether a path, a dotted module or a top-level name of a module exists."""
    if "/" in name:
        return (root / name).exists()
    path = root / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module = path.parent.with_suffix(".py")
    definition = rf"^(?:(?:async )?def |class )?{path.name}\b"
    return module.is_file() and bool(re.search(definition, module.read_text("utf-8"), re.M))


def main() -> int:
    """Print every offence; return 1 if there is one."""
    sources = [path.relative_to(ROOT) for path in hand_written(ROOT)]
    offences = find_offences(ROOT, sources) + find_dead_names(ROOT)
    print("\n".join(offences) or f"{len(sources)} source files are within their limits")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
