"""One boot for all checks; the figures of the bench at the end of the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from bench.harness import HEADER, Row
from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.known import FILE, FILE_BYTES, UNREAD_FILES
from tests.guest.machine import ROOT, Ended, run
from tests.guest.packages import CannotRun, prepare

CACHE = ROOT / "build" / "guest"
LAST = CACHE / "last"  # kept until the next run, for who wants to know why it failed
LIMIT = ROOT / "bench" / "usage" / "cgroup_read_limit.c"
PARTS = ("soft_roce", "pods", "session", "restore", "devices", "hotplug", "systemd", "bench")

_rows = pytest.StashKey[list[Row]]()
_ended = pytest.StashKey[Ended]()


@pytest.fixture(scope="session")
def guest(request: pytest.FixtureRequest) -> Ended:
    """Boot once, do everything, and hand out what the machine left."""
    if os.geteuid() != 0:
        pytest.skip("only root may hand out this machine's root and edit the emulator's memory")
    try:
        parts = prepare(CACHE)
    except CannotRun as error:
        pytest.skip(f"no virtual machine: {error}")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the reader that is the bench's limit")
    shutil.rmtree(LAST, ignore_errors=True)
    share = LAST / "share"
    share.mkdir(parents=True)
    (share / FILE).write_bytes(b"x" * FILE_BYTES)
    for name in UNREAD_FILES.values():
        (share / name).write_bytes(b"y" * CACHE_BYTES)
    library = str(share / "limit.so")
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", library, str(LIMIT)], check=True, timeout=60
    )
    ended = run(parts, LAST, share)
    request.config.stash[_ended] = ended
    return ended


@pytest.fixture(scope="session")
def facts(guest: Ended) -> dict[str, Any]:
    """What each part found; a part that failed fails those that ask for it."""
    found = Facts()
    for part in PARTS:
        path = guest.share / f"{part}.json"
        text = path.read_text() if path.exists() else json.dumps({"error": guest.console[-3000:]})
        found[part] = json.loads(text)
    return found


class Facts(dict[str, Any]):
    """Facts by part."""

    def __getitem__(self, part: str) -> Any:
        result = super().__getitem__(part)
        if "error" in result:
            pytest.fail(f"{part} failed in the virtual machine:\n{result['error']}")
        return result["facts"]


@pytest.fixture(scope="session")
def rows(facts: dict[str, Any], request: pytest.FixtureRequest) -> list[Row]:
    """Rows of the bench."""
    made = [Row(**row) for row in facts["bench"]]
    request.config.stash[_rows] = made
    return made


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the machine cost and the rows of the bench."""
    if _ended in config.stash:
        ended = config.stash[_ended]
        terminalreporter.write_line(f"virtual machine: {ended.wall_s:.0f} s; {ended.share.parent}")
    for line in (HEADER, *config.stash[_rows]) if _rows in config.stash else ():
        terminalreporter.write_line(str(line))
