"""A FIFO in the place of a file of the agent's state: no reader waits for a writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.allocation.cdi_document import CdiFile
from agent.allocation.cdi_folder import CdiFolder
from agent.cgroup.ledger import ChangeLedger
from agent.deviceplugin.allocations import read_device_checkpoint
from agent.durable import read_file
from agent.errors import AgentError
from agent.objects.device_info_file import DeviceInfoFileSink
from agent.objects.files import FileSink
from agent.snapshot.publications import DesiredObject
from agent.state_writer import NO_ANSWER, StateWriter
from plugins.shared.state_file import JsonStateFile
from plugins.vendors.cambricon.smlu.ownership import FILE as OWNED_FILE
from plugins.vendors.cambricon.smlu.ownership import SmluOwnershipFile
from plugins.vendors.rdma.discovery.minors import FILE_NAME as MINORS
from plugins.vendors.rdma.discovery.minors import RdmaStateFile
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(PATIENCE_S)


def load_lasting(folder: Path) -> None:
    file: JsonStateFile[Any] = JsonStateFile(str(folder), "state.json", dict)
    assert file.load() is None
    if file.problem is not None:
        raise OSError(file.problem.message)


def load_rdma(folder: Path) -> None:
    stored = RdmaStateFile(str(folder), "boot").load()
    if stored.error is not None:
        raise stored.error


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the ledger": ("ledger.log", lambda at: ChangeLedger(str(at / "ledger.log"), "boot").load()),
    "the writer of state": ("a.json", lambda at: StateWriter().read(str(at / "a.json"), 99)),
    "minors of RDMA devices": (MINORS, load_rdma),
    "slices of cards": (OWNED_FILE, lambda at: SmluOwnershipFile(str(at), "boot").read()),
    "the kubelet's checkpoint": (
        "kubelet_internal_checkpoint",
        lambda at: read_device_checkpoint(str(at), None),
    ),
    "what a plug-in stores": ("state.json", load_lasting),
    "any other": ("x", lambda at: read_file(str(at / "x"), 99)),
}


@pytest.mark.parametrize(("name", "read"), READERS.values(), ids=READERS)
def test_a_reader_says_that_it_is_no_file(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((OSError, AgentError)) as refusal:
        read(tmp_path)
    assert NO_ANSWER not in str(refusal.value)  # as a reader that waits for a writer would end


def desired(name: str) -> DesiredObject:
    return DesiredObject(
        file_name=name, api_version="v1", kind="Device", name="n", body={"devices": []}
    )


def test_a_cdi_file_takes_the_place_of_a_fifo(tmp_path: Path) -> None:
    name = "xpu-agent-nvidia.json"
    os.mkfifo(tmp_path / name)
    text = b'{"cdiVersion":"0.5.0","kind":"xpu-agent.io/gpu","devices":[]}'
    synchronize = CdiFolder(str(tmp_path)).synchronize(
        (CdiFile(name=name, kind="xpu-agent.io/gpu", devices=(), text=text),)
    )
    assert (synchronize.written, (tmp_path / name).read_bytes()) == ((name,), text)


@pytest.mark.parametrize("applier", [FileSink, DeviceInfoFileSink])
def test_a_published_file_takes_the_place_of_a_fifo(
    tmp_path: Path, applier: type[FileSink] | type[DeviceInfoFileSink]
) -> None:
    os.mkfifo(tmp_path / "device.yaml")
    applier(str(tmp_path)).apply((desired("device.yaml"),))
    assert (tmp_path / "device.yaml").is_file()
