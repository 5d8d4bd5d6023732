"""The maker's own mock of eight cards, as a scenario of the stub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.captures import SHARED

FOLDER: Path = SHARED / "captures" / "cambricon"


def _text(codes: list[int]) -> str:
    return bytes(codes).split(b"\0")[0].decode()


def scenario() -> list[str]:
    """Return the capture's facts as lines; it names models by their number only."""
    mock: dict[str, Any] = json.loads((FOLDER / "device-plugin-mock.json").read_text())
    return [f"count {mock['num']}", *_lines(mock)]


def _lines(mock: dict[str, Any]) -> Iterator[str]:
    for index in range(mock["num"]):
        card = f"mlu.{index}"
        yield f"{card}.uuid {_text(mock['uuid'][index])}"
        yield f"{card}.id {mock['type'][index]}"
        yield f"{card}.mem {mock['memory']}"
        yield f"{card}.board {mock['motherboard'][index]}"
        yield f"{card}.health {mock['health'][index]}"
        yield f"{card}.driver {mock['driver_status'][index]}"
        yield f"{card}.pci {':'.join(map(str, mock['pcie_info'][index]))}"
        states, remotes = mock["mlulink_status"][index], mock["remote_info"][index]
        for port, (state, remote) in enumerate(zip(states, remotes, strict=True)):
            yield f"{card}.port.{port} {state}:{_text(remote)}"
