"""Runs the tests of each fault in a copy of the tree that has this fault and no other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.captures import SHARED
from tests.mutations.table import ROOT, BadEntry, Fault

COPIED = (
    ".ci",
    "agent",
    "plugins",
    "proto",
    "tests",
    "fixtures",
    "daemonset",
    "docs",
    "bench",
    "build",
)
IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")
TEST_S = 60  # a fault may cause an endless loop: a test that takes longer has failed
RUN_S = 900
PASSED, FAILED = 0, 1  # exit statuses of pytest
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(msgspec.Struct, frozen=True):
    """Which test failed first; empty: none did, and the fault survived."""

    fault: Fault
    test: str

    @property
    def caught(self) -> bool:
        """Return whether a test failed."""
        return bool(self.test)


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """Copy what tests need: the code, the tests, the fixtures and the files of the project."""
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, symlinks=True, ignore=IGNORED)
    names = ("*.toml", "*.md", "*.lock", "Makefile", "LICENSE", ".dockerignore")
    for path in (path for name in names for path in root.glob(name)):
        if path.is_file():
            shutil.copy2(path, target / path.name)
    # captures of real machines, where there are some
    beside = target.parent / SHARED.name
    if SHARED.is_dir() and not beside.exists():
        beside.symlink_to(SHARED)


def run_fault(fault: Fault, tree: Path) -> Outcome:
    """Put the fault into the tree, run its tests, and take the fault out again.

    The test that failed must pass without the fault, or it has caught nothing: `BadEntry`.
    """
    path = tree / fault.file
    original = path.read_text(encoding="utf-8")
    path.write_text(fault.mutate(original), encoding="utf-8")
    try:
        status, output = run_tests(fault.tests, tree)
    finally:
        path.write_text(original, encoding="utf-8")
    if status not in (PASSED, FAILED):
        raise BadEntry(f"{fault.name}: pytest ended with status {status}\n{output[-2000:]}")
    if status == PASSED:
        return Outcome(fault, "")
    failure = _FAILURE.search(output)
    name = failure[1] if failure else "a test that pytest does not name"
    status, output = run_tests(fault.tests, tree, "--last-failed", "--last-failed-no-failures=none")
    if status != PASSED:
        raise BadEntry(f"{fault.name}: {name} fails without the fault too\n{output[-2000:]}")
    return Outcome(fault, name)


def run_tests(tests: Sequence[str], tree: Path, *more: str) -> tuple[int, str]:
    """Return pytest's exit status and output; the first failure ends the run."""
    cache = f"cache_dir={tree.parent / 'cache'}"  # which test has failed last
    options = ["-x", "-q", "-p", "no:xdist", "--timeout", str(TEST_S), "-o", cache, *more]
    # `CI` makes Hypothesis try the same examples each time; no bytecode, because a file that
    # changes twice within one second must be compiled twice
    environment = {
        **os.environ,
        "CI": "1",
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        outcome = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadEntry(f"{' '.join(tests)}: no end within {RUN_S} seconds") from error
    return outcome.returncode, outcome.stdout + outcome.stderr
