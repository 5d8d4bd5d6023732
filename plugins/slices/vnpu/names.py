"""Names that others give to chips and vNPUs, as they stand in annotations and device ids."""

from __future__ import annotations

import re

import msgspec

from agent.errors import ParseError

MAX_PHY = 100  # that Huawei's plug-in takes in an annotation
_TEMPLATE = re.compile(r"vir(\d{2})(?:_\d{1,2}c)?(?:_\d{1,3}g)?(?:_(?:m|nm|dvpp|ndvpp))?")
_CUT = re.compile(rf"(\d{{1,3}})-({_TEMPLATE.pattern})")
_WHOLE = re.compile(r"\d{1,3}(?:,\d{1,3})*")
_DEVICE = re.compile(
    r"Ascend(910|310P|310B|310)-(\d{1,2}c(?:\.\d{1,2}cpu)?(?:\.\d{1,3}g)?(?:\.n?dvpp)?)"
    r"-(\d{1,4})-(\d{1,3})(?:_(\d{1,2}))?"
)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What the annotation `huawei.com/npu-core` grants: whole chips, or one piece of one chip."""

    phys: tuple[int, ...]
    template: str = ""
    cores: int | None = None  # of the piece, which is as many ids as kubelet must have given


class VnpuName(msgspec.Struct, frozen=True, kw_only=True):
    """A vNPU as Huawei's device plug-in names it."""

    family: str
    kind: str
    vdev: int
    phy: int
    group: int | None = None


def template_cores(name: str) -> int | None:
    """Return how many AI cores a template's name says; `None` if it is no template's name."""
    found = _TEMPLATE.fullmatch(name)
    return int(found[1]) if found else None


def parse_granted(text: str) -> Granted:
    """Read `0-vir02` or `0,1`; `ParseError` for anything else, and for numbers beyond 100."""
    cut = _CUT.fullmatch(text)
    if cut is None and not _WHOLE.fullmatch(text):
        raise ParseError("npu-core annotation", text)
    phys = (int(cut[1]),) if cut else tuple(int(part) for part in text.split(","))
    if max(phys) > MAX_PHY or len(set(phys)) != len(phys):
        raise ParseError("npu-core annotation", text)
    if cut is None:
        return Granted(phys=tuple(sorted(phys)))
    return Granted(phys=phys, template=cut[2], cores=int(cut[3]))


def parse_device(text: str) -> VnpuName:
    """Read `Ascend310P-2c-100-0`, with `_<group>` behind it where the chip has groups."""
    found = _DEVICE.fullmatch(text)
    if found is None or not 100 <= int(found[3]) <= 1123:
        raise ParseError("vNPU's name", text)
    return VnpuName(
        family=found[1],
        kind=found[2],
        vdev=int(found[3]),
        phy=int(found[4]),
        group=int(found[5]) if found[5] else None,
    )
