"""Time slicing by the settings: which devices of a resource are listed how many times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from agent.config.containers import DevicePluginSettings
from agent.errors import BadConfig

SHARED = ".shared"  # added to the name of a renamed resource
MAX_REPLICAS = 128  # of one device: the kubelet lists each, and asks which of them all
MAX_NAME = 63
_PART = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_NAME = re.compile(rf"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/{_PART}")
_KEYS = frozenset(("resource", "name", "replicas", "rename", "devices"))
_NOT_OURS = ("koordinator.sh", "kubernetes.io")  # ends of domains
_NEVER = re.compile(r"huawei\.com/npu-.*")  # the Node has them from the Device object


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `devices`: how many, `None` for all, or names: uuid, index, index of a slice."""

    resource: str
    replicas: int
    renamed: str  # equal to the resource: as it was
    devices: int | tuple[str, ...] | None = None


def sharing_of(settings: DevicePluginSettings) -> tuple[Sharing, ...]:
    """Return the rows of `device_plugin.sharing`; `BadConfig` names the row that is wrong.

    The keys are those of NVIDIA's own `sharing.timeSlicing.resources`. `rename` is the new name, or
    true for `.shared` behind the old one.
    """
    rows = tuple(_row(i, row) for i, row in enumerate(settings.sharing))
    if len({row.resource for row in rows}) < len(rows):
        raise BadConfig("device_plugin.sharing: a resource stands in two rows")
    return rows


def checked_name(name: str, where: str) -> str:
    """Return a resource's name that the kubelet takes and that is not somebody else's."""
    domain = name.partition("/")[0]
    if not _NAME.fullmatch(name) or len(name.rpartition("/")[2]) > MAX_NAME:
        raise BadConfig(f"{where}: {name[:80]!r} is no name of a resource such as example.com/gpu")
    if domain.endswith(_NOT_OURS) or _NEVER.fullmatch(name):
        raise BadConfig(f"{where}: {name} is on the Node by other means: choose another name")
    return name


def _row(index: int, row: Mapping[str, object]) -> Sharing:
    where = f"device_plugin.sharing[{index}]"
    if unknown := sorted(set(map(str, row)) - _KEYS):
        raise BadConfig(f"{where}: unknown key {unknown[0]!r}")
    resource = row.get("resource", row.get("name"))
    if not isinstance(resource, str):
        raise BadConfig(f"{where}.resource: which resource is shared")
    replicas = row.get("replicas")
    if type(replicas) is not int or not 2 <= replicas <= MAX_REPLICAS:
        raise BadConfig(f"{where}.replicas: a number from 2 to {MAX_REPLICAS}")
    return Sharing(
        resource=checked_name(resource, f"{where}.resource"),
        replicas=replicas,
        renamed=_renamed(resource, row.get("rename"), f"{where}.rename"),
        devices=_devices(row.get("devices", "all"), f"{where}.devices"),
    )


def _renamed(resource: str, told: object, where: str) -> str:
    if told is None or told is False:
        return resource
    if told is True:
        return checked_name(resource + SHARED, where)
    if not isinstance(told, str):
        raise BadConfig(f"{where}: a name, or true for {resource}{SHARED}")
    return checked_name(told, where)


def _devices(told: object, where: str) -> int | tuple[str, ...] | None:
    if told == "all":
        return None
    if type(told) is int and told > 0:
        return told
    if isinstance(told, Sequence) and not isinstance(told, str) and told:
        return tuple(dict.fromkeys(str(one) for one in told))
    raise BadConfig(f"{where}: all, a number, or a list of uuids and indices")
