"""One boot for all checks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.guest.machine import Ended, boot
from tests.guest.packages import CannotRun

PARTS = (
    "soft_roce",
    "pods",
    "session",
    "restore",
    "files",
    "suppression",
    "limits",
    "memory_reclaim",
    "devices",
    "hotplug",
    "systemd",
)

_ended = pytest.StashKey[Ended]()


@pytest.fixture(scope="session")
def guest(request: pytest.FixtureRequest) -> Ended:
    """Boot once, run every part, and return what the machine left."""
    try:
        ended = boot(PARTS)
    except CannotRun as error:
        pytest.skip(f"no virtual machine: {error}")
    request.config.stash[_ended] = ended
    return ended


@pytest.fixture(scope="session")
def facts(guest: Ended) -> dict[str, Any]:
    """Return the facts of each part; a part that failed fails the tests that use it."""
    facts = Facts()
    for part in PARTS:
        path = guest.share / f"{part}.json"
        text = path.read_text() if path.exists() else json.dumps({"error": guest.console[-3000:]})
        facts[part] = json.loads(text)
    return facts


class Facts(dict[str, Any]):
    """Facts by part."""

    def __getitem__(self, part: str) -> Any:
        result = super().__getitem__(part)
        if "error" in result:
            pytest.fail(f"{part} failed in the virtual machine:\n{result['error']}")
        return result["facts"]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the machine cost."""
    if _ended in config.stash:
        ended = config.stash[_ended]
        terminalreporter.write_line(f"virtual machine: {ended.wall_s:.0f} s; {ended.share.parent}")
