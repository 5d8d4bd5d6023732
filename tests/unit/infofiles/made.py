"""A host with a folder of device-info files that tests change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent.host.files import LiveHostFiles
from agent.wire_formats.device_info import DIRECTORY
from plugins.vendors.infofiles.session import InfofilesSession
from plugins.vendors.infofiles.settings import InfofilesSettings


def entry(minor: object = "0", **changes: Any) -> dict[str, Any]:
    """One card as koord-device-daemon writes it."""
    plain = {
        "vendor": "metax",
        "model": "C500",
        "uuid": f"GPU-{minor}",
        "minor": minor,
        "resources": {"koordinator.sh/gpu-memory": "64Gi", "koordinator.sh/gpu-core": "100"},
        "topology": {"nodeID": "0", "pcieID": "pci0000:16", "busID": f"0000:1{minor}:00.0"},
        "status": {"healthy": True},
    }
    return {**plain, **changes}


class Folder:
    """The folder below a root of its own, and a session that reads it."""

    def __init__(self, root: Path) -> None:
        self.path = root / DIRECTORY.lstrip("/")
        self.path.mkdir(parents=True)
        self.session = InfofilesSession(LiveHostFiles(str(root)), InfofilesSettings())

    def put(self, name: str, *entries: object) -> None:
        """Write a file of entries."""
        (self.path / name).write_text(json.dumps(entries))
