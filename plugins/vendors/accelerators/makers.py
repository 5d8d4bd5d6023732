"""The table of PCI functions that are accelerators, by maker, class and id.

Ids are those of the PCI SIG and of the makers' own device plug-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

ACCELERATOR = "1200"  # processing accelerator
FPGA = "fpga"


def _no_models() -> Mapping[int, str]:
    return MappingProxyType({})


class Maker(msgspec.Struct, frozen=True, kw_only=True):
    """One maker of accelerators. `label` is the value of the label `gpu-vendor`."""

    label: str
    classes: tuple[str, ...] = (ACCELERATOR,)  # the first digits of a function's class
    models: Mapping[int, str] = msgspec.field(default_factory=_no_models)  # by device id; some ""
    is_listed_only: bool = False  # the vendor id is that of other things as well
    has_vendor_plugin: bool = False  # another vendor plug-in lists its cards
    role: str = "accelerator"


def _models(**names: str) -> Mapping[int, str]:
    return MappingProxyType({int(name[1:], 16): model for name, model in names.items()})


MAKERS: Mapping[int, Maker] = MappingProxyType(
    {
        0x10DE: Maker(label="nvidia", classes=("0302", "0300"), has_vendor_plugin=True),
        0x19E5: Maker(
            label="huawei",
            has_vendor_plugin=True,
            models=_models(
                _d100="Ascend-310",
                _d500="Ascend-310P",
                _d801="Ascend-910A",
                _d802="Ascend-910B",
                _d803="Ascend-910C",
            ),
        ),
        0xCABC: Maker(label="cambricon", classes=("12",), has_vendor_plugin=True),
        0x9999: Maker(
            label="metax",
            classes=("0380",),
            models=_models(_4000="C550", _4001="C500", _4081="C280", _4083="N260"),
        ),
        0x1D22: Maker(label="kunlun", models=_models(_3684="Kunlun", _3685="Kunlun2")),
        0x1E3E: Maker(label="iluvatar"),
        0x1D94: Maker(
            label="hygon",
            classes=("0380", "0b40"),
            models=_models(_62b7="K100", _6210=""),
            is_listed_only=True,
        ),
        0x1E36: Maker(
            label="enflame",
            models=_models(
                **dict.fromkeys(("_0001", "_0002", "_0003"), "T10/T11"),
                **dict.fromkeys(("_0021", "_0022", "_0023", "_0024"), "T20/T21"),
                _8001="I20",
                _8011="I10",
                _8012="I10",
            ),
        ),
        0x1ED5: Maker(
            label="mthreads",
            classes=("0300", "0302"),
            models=_models(_0222="S3000", _0201="S80", _0105="S50"),
        ),
        0x1002: Maker(
            label="amd",
            classes=(ACCELERATOR, "0380"),
            models=_models(_740c="MI200", _740f="MI200", _74a1="MI300X"),
        ),
        0x1DA3: Maker(label="habana", models=_models(_1000="Gaudi", _1010="Gaudi", _1020="Gaudi2")),
        0x0731: Maker(
            label="jingjia", classes=("0300",), models=_models(_7200="JM7200", _9100="JM9100")
        ),
        0x1EC6: Maker(label="vastai"),
        0x1EE0: Maker(label="biren"),
        0x1E60: Maker(label="hailo"),
        0x1ED2: Maker(label="furiosa"),
        0x1DE0: Maker(label="groq"),
        0x10EE: Maker(label="xilinx", role=FPGA),
        0x1172: Maker(label="altera", role=FPGA),
    }
)


def maker_of(
    vendor_id: int | None, device_id: int | None, class_code: int | None, *, virtual: bool = False
) -> Maker | None:
    """Return the maker of an accelerator; `None` for another or a virtual function.

    `class_code` has 24 bits. A function with an id that is not in the table is an accelerator if
    its class is one: makers release new ones.
    """
    maker = MAKERS.get(vendor_id) if vendor_id is not None else None
    if maker is None or class_code is None or virtual:
        return None
    if maker.is_listed_only and device_id not in maker.models:
        return None
    return maker if f"{class_code:06x}".startswith(maker.classes) else None
