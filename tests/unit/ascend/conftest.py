"""Ascend machines: an invented host, and the stub library with the scenario of a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures.hosts.make_atlas import build
from tests.stubs.child import Child, on_tree
from tests.stubs.dcmi.machines import a3x16, b3x8
from tests.stubs.stub import Stub


class Machine:
    """A stub with its scenario, and a host whose files can be changed."""

    def __init__(self, folder: Path, name: str, lines: list[str]) -> None:
        self.folder = folder
        self.host = folder / "host"
        self.host.mkdir()
        self.write(build(name))
        self.stub = Stub("dcmi", folder)
        self.stub.play(*lines)

    def write(self, recording: str) -> None:
        """Replace the host's files."""
        (self.host / "host.txt").write_text(recording)

    def as_folder(self, buses: Sequence[str]) -> None:
        """Make the host a folder whose files the test may change."""
        (self.host / "host.txt").unlink()
        (self.host / "proc").mkdir()
        (self.host / "dev").mkdir()
        for number, bus in enumerate(buses):
            function = self.host / f"sys/bus/pci/devices/0000:{bus}:00.0"
            function.mkdir(parents=True)
            for name, value in (("vendor", "19e5"), ("device", "d802"), ("class", "120000")):
                (function / name).write_text(f"0x{value}\n")
            (self.host / f"dev/davinci{number}").write_text("")
        (self.host / "dev/davinci_manager").write_text("")

    def session(self, **settings: object) -> Child:
        """Return the vendor's session in a separate process, not yet started."""
        defaults: dict[str, object] = {
            "library_path": str(self.stub.path),
            "sample_interval_s": 0.0,
        }
        environment = self.stub.environment
        return on_tree("ascend", environment, self.host, {**defaults, **settings})


@pytest.fixture
def b3(tmp_path: Path) -> Machine:
    """Eight 910B3."""
    return Machine(tmp_path, "910b3x8", b3x8())


@pytest.fixture
def a3(tmp_path: Path) -> Machine:
    """Eight A3 cards of two dies."""
    return Machine(tmp_path, "a3x16", a3x16())
