"""Writes the accelerators as a device-info file for koordlet.

The format is that of koord-device-daemon (see `agent.wire_formats.device_info`). The Device that
koordlet makes of the file equals the agent's, except for what the format lacks: sockets, driver
version, partitions of one card and bandwidths. The file is written only after a change.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent import durable
from agent.errors import PublishError
from agent.objects.device import partition_policy
from agent.objects.files import SinkResult
from agent.snapshot.device import Device, DeviceKind, Health
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import DesiredObject
from agent.wire_formats import api_values
from agent.wire_formats.device_info import OWN_FILE, SOURCE_FILE_FACT
from agent.wire_formats.device_object import select_devices
from agent.wire_formats.json_values import JsonDict

GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"  # koordlet adds it to every device
HONOR_POLICY = "Honor"
DEVICES_MEMBER = "devices"  # member of the body that holds the array


class DeviceInfoFilePublisher(msgspec.Struct, frozen=True):
    """Renders the entries of all accelerators that koordlet may publish."""

    interval_s: float = 3.0
    name: str = "device-info-file"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:  # noqa: ARG002 - see Publisher
        """Return the file, or nothing until every vendor has answered or failed to."""
        view = snapshot.devices
        if view.taken_s is None or not view.value.is_final:
            return ()
        return (
            DesiredObject(
                file_name=OWN_FILE,
                api_version="",
                kind="DeviceInfoFile",
                name=snapshot.node.name,
                body={DEVICES_MEMBER: device_entries(snapshot)},
            ),
        )


def device_entries(snapshot: NodeSnapshot) -> list[JsonDict]:
    """Return one entry for each published accelerator, in the order of their minors.

    Devices from another program's file are left out, because koordlet reads that file itself.
    Devices without resources are left out too, because koordlet would give them some.
    """
    view = snapshot.devices.value
    cards = [d for d in select_devices(view.devices).published if _is_from_agent(d)]
    minors = {card.key: card.info.minor for card in cards if card.info.minor is not None}
    groups = [group for group in view.groups if all(key in minors for key in group.keys)]
    policy = partition_policy(view)
    return [_entry(card, _links(card, groups, minors), policy) for card in cards]


def _is_from_agent(device: Device) -> bool:
    info = device.info
    is_from_file = SOURCE_FILE_FACT in dict(info.facts)
    return info.kind is not DeviceKind.RDMA and bool(_resources(device)) and not is_from_file


def _entry(card: Device, links: list[JsonDict], policy: str | None) -> JsonDict:
    info, place = card.info, card.place
    topology: JsonDict = {}
    if policy is not None:  # koordlet sets the label if the member exists, even if it is empty
        topology = {"p2pLinks": links, "mustHonorPartition": policy == HONOR_POLICY}
    return {
        "vendor": api_values.label_value(info.vendor),
        "model": api_values.label_value((info.model or "").removeprefix("NVIDIA ")),
        "uuid": api_values.clean_text(info.uuid or ""),
        "minor": str(info.minor),
        "resources": _resources(card),
        "topology": topology
        | {
            "socketID": str(place.socket),
            # koordlet reads the empty text as unknown
            "nodeID": str(place.numa_node) if place.numa_node >= 0 else "",
            "pcieID": api_values.clean_text(card.pcie_scope_id),
            "busID": api_values.clean_text(info.bus_id or ""),
        },
        "status": _status(info.health),
    }


def _resources(card: Device) -> dict[str, str]:
    resources = {
        api_values.clean_text(name): value
        for name, value in card.info.resources
        if name != GPU_MEMORY_RATIO
    }
    return {
        name: value
        for name, value in sorted(resources.items())
        if name and api_values.valid_quantity(value) is not None
    }


def _links(card: Device, groups: Iterable[DeviceGroup], minors: dict[str, int]) -> list[JsonDict]:
    """Return a link for each partition of the card with others; koordlet adds the card itself."""
    links: list[JsonDict] = []
    for group in groups:
        kind = api_values.clean_text(group.link_type)
        others = sorted(minors[key] for key in set(group.keys) if key != card.key)
        if card.key in group.keys and others and kind:
            links.append({"peerMinor": ",".join(map(str, others)), "type": kind})
    return links


def _status(health: Health) -> JsonDict:
    if health.is_in_service:
        return {"healthy": True}
    return {
        "healthy": False,
        "errCode": api_values.condition_reason(health.reason),
        "errMessage": api_values.condition_message(health.message, health.reason),
    }


def encode_entries(entries: object) -> bytes:
    """Encode the array as koord-device-daemon does: two spaces a level, texts unescaped."""
    text = json.dumps(entries, indent=2, ensure_ascii=False)
    return text.encode("utf-8", "replace")


MODE = 0o644

FOLDER_MODE = 0o755


class DeviceInfoFileSink:
    """Keeps the agent's file in the folder; it is replaced as a whole after a change.

    The file stays when the agent ends: devices do not vanish because the agent is upgraded.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._cleaned = False

    def where(self, desired: DesiredObject) -> str:
        """Return the path of the file."""
        return str(self.folder / desired.file_name)

    def apply(self, desired: Iterable[DesiredObject]) -> SinkResult:
        """Write the desired content if it differs; raise `PublishError` if that fails."""
        written: list[str] = []
        unchanged: list[str] = []
        for item in desired:
            path = Path(self.where(item))
            data = encode_entries(item.body[DEVICES_MEMBER])
            try:
                self._clean(path)
                if _read(path, len(data)) == data:
                    unchanged.append(item.file_name)
                    continue
                self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                _replace(path, data)
            except OSError as error:
                detail = f"{error.strerror}; make publish.device_info_directory writable"
                raise PublishError(str(path), detail, error.errno or 0) from error
            written.append(item.file_name)
        return SinkResult(tuple(written), tuple(unchanged))

    def remove(self) -> tuple[str, ...]:
        """Remove the agent's file, as when it is uninstalled; return the paths that were removed.

        Raise `PublishError` if that fails.
        """
        path = self.folder / OWN_FILE
        try:
            self._clean(path)
            if not os.path.lexists(path):
                return ()
            durable.remove(str(path))
        except OSError as error:
            raise PublishError(str(path), error.strerror or "", error.errno or 0) from error
        return (str(path),)

    def _clean(self, path: Path) -> None:
        """Remove temporary files of a killed agent.

        koordlet accepts no entry while it sees a partial file.
        """
        if not self._cleaned:
            for temporary in (str(_path_outside(path)), durable.temporary_path(str(path))):
                durable.remove(temporary)
            self._cleaned = True


def _read(path: Path, size: int) -> bytes | None:
    try:
        return durable.read_file(str(path), size + 1)
    except (FileNotFoundError, durable.NotRegularFileError):
        return None


def _replace(path: Path, data: bytes) -> None:
    """Write a temporary file outside of the folder, then move it in: koordlet reads whole folders.

    If the folder is a mount of its own, the temporary file is a hidden file in the folder.
    """
    outside = _path_outside(path)
    try:
        durable.write_new(str(outside), data, MODE)
        os.replace(outside, path)
    except OSError as error:
        durable.remove(str(outside))
        if error.errno not in (errno.EXDEV, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        durable.replace_file(str(path), data, MODE)


def _path_outside(path: Path) -> Path:
    return path.parent.with_name(f".{path.parent.name}.{path.name}.tmp")
