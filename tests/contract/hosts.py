"""Hosts that every vendor is asked about: recorded machines, and one with the template's cards."""

from __future__ import annotations

import functools
from pathlib import Path

from agent.host.files import HostFiles
from agent.recording.open import open_host
from agent.recording.tree import TreeBuilder

FOLDER = Path(__file__).parents[2] / "fixtures/hosts"
TEMPLATE = "template-cards"
HOSTS = (
    *sorted(i.name for i in FOLDER.iterdir() if i.is_dir() and not i.name.startswith("_")),
    TEMPLATE,
)
EMPTY: HostFiles = TreeBuilder().build("")


@functools.cache
def host_of(name: str) -> HostFiles:
    """Return the files of one of `HOSTS`."""
    return _template_cards() if name == TEMPLATE else open_host(str(FOLDER / name)).files


def _template_cards() -> HostFiles:
    """Make two functions of the vendor that the template and its copies look for."""
    builder = TreeBuilder()
    for address in ("0000:03:00.0", "0000:04:00.0"):
        facts = {"vendor": "0xfffe", "device": "0x0001", "class": "0x120000"}
        for name, value in facts.items():
            builder.put(f"/sys/bus/pci/devices/{address}/{name}", f"{value}\n".encode())
    return builder.build("")
