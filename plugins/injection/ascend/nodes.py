"""Device nodes of Ascend chips: which managers each family of chips has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from agent.model.device import VendorDevice
from agent.model.grant.edits import NodeEdit
from agent.model.grant.granted import Match
from agent.model.grant.host import HostMeans
from plugins.injection.nodes import below, present, shown

MANAGER = "/dev/davinci_manager"
DOCKER_MANAGER = "/dev/davinci_manager_docker"
_FOLDERS = ("/dev/uburma", "/dev/ummu")


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between families of chips; names are of nodes below /dev."""

    shared: tuple[str, ...] = ("devmm_svm", "hisi_hdc", "dvpp_cmdlist")  # if present
    needed: tuple[str, ...] = ()
    docker_manager: bool = False  # the manager for containers stands in for the other


SERVER = Family()
A5 = Family(shared=("hisi_hdc",))
EDGE_310B = Family(
    shared=(
        *("svm0", "ts_aisle", "upgrade", "sys", "vdec", "vpc", "pngd", "venc", "log_drv"),
        *("acodec", "ai", "ao", "vo", "hdmi", "dvpp_cmdlist"),
    ),
    docker_manager=True,
)
SOC_A1 = Family(
    shared=("event_sched", "xsmem_dev", "dvpp_cmdlist"),
    needed=(
        *("vpc", "vdec", "sys", "spi_smbus", "user_config", "ts_aisle", "svm0", "log_drv"),
        *("memory_bandwidth", "upgrade"),
    ),
)
MODEL_3000 = Family(shared=("dvpp_cmdlist",))
# by what the vendor's facts call the family or the product; anything else is a server's
_FAMILIES = {
    "A5": A5,
    "310B": EDGE_310B,
    "Atlas 200I SoC A1": SOC_A1,
    "Atlas 200 Model 3000": MODEL_3000,
}

_SHARED = {
    name for family in (SERVER, *_FAMILIES.values()) for name in (*family.shared, *family.needed)
}
PATTERNS = (
    *("/dev/davinci*", "/dev/vdavinci*"),
    *(f"{folder}/*" for folder in _FOLDERS),
    *(f"/dev/{name}" for name in sorted(_SHARED)),
)


def family_of(device: VendorDevice) -> Family:
    """Return what a device's facts say of its family; the product decides before the chip."""
    facts = dict(device.facts)
    named = (_FAMILIES.get(facts.get(key, "")) for key in ("product", "family"))
    return next((family for family in named if family is not None), SERVER)


def node_edits(granted: Sequence[Match], host: HostMeans) -> tuple[NodeEdit, ...]:
    """Return the chips' nodes ascending, then the managers of their family.

    `DeviceNodeMissing` if a chip's node or the manager is not there.
    """
    nodes = [_chip(match, host) for match in sorted(granted, key=lambda match: match.vendor_minor)]
    nodes += _managers(family_of(granted[0].device), host)
    return tuple({node.path: node for node in nodes}.values())


def _chip(match: Match, host: HostMeans) -> NodeEdit:
    if match.partition is None:
        return shown(host.must_have(f"/dev/davinci{match.vendor_minor}"))
    number = match.partition.instance
    return shown(host.must_have(f"/dev/vdavinci{number}"), f"/dev/davinci{number}")


def _managers(family: Family, host: HostMeans) -> Iterator[NodeEdit]:
    for_containers = host.node(DOCKER_MANAGER) if family.docker_manager else None
    yield shown(for_containers or host.must_have(MANAGER), MANAGER)
    yield from (shown(host.must_have(f"/dev/{name}")) for name in family.needed)
    yield from present(host, (f"/dev/{name}" for name in family.shared))
    for folder in _FOLDERS:
        yield from below(host, folder)
