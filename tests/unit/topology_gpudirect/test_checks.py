"""Every reason why a GPU and a NIC do not reach each other is named, with the port it is about."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from agent.snapshot.device import DeviceKind, DeviceLink
from agent.snapshot.node import DeviceView, GpuDirectHost, GpuDirectPair
from agent.snapshot.pci import PciLink, PciTree
from agent.topology.gpudirect import check_pairs
from tests.unit.topology_gpudirect.made import (
    GPU,
    GPU_PORT,
    MEANS,
    NIC,
    NIC_PORT,
    ROOT_BRIDGE,
    UP,
    device,
    tree,
    view,
)

Changes = Mapping[str, Mapping[str, object]]
OPEN = GpuDirectHost(driver=True, open_modules=True, driver_major=515, kernel=(5, 12))
NOTHING: Changes = MappingProxyType({})


def pair(
    changes: Changes = NOTHING, means: GpuDirectHost = MEANS, *links: DeviceLink, **facts: object
) -> GpuDirectPair:
    result = tree(changes, **facts)
    (answer,) = check_pairs(view(result, *links), result, means)
    return answer


def names(answer: GpuDirectPair) -> list[str]:
    return [check.name for check in answer.checks]


def test_below_one_switch_with_everything_there_a_pair_is_ready() -> None:
    assert pair() == GpuDirectPair(gpu=GPU, nic=NIC, level="PIX", verdict="ok")


@pytest.mark.parametrize(
    ("nic_word", "gpu_word", "nic_facts", "verdict", "reasons"),
    [
        pytest.param(0x0019, 0x0015, {}, "ok", [], id="V83"),
        pytest.param(
            0x001D,
            0x001D,
            {},
            "slow",
            [
                f"{NIC_PORT}: ACS control word 0x001d",
                f"{GPU_PORT}: ACS control word 0x001d",
            ],
            id="V84",
        ),
        pytest.param(
            0x001D, 0x0011, {}, "slow", [f"{NIC_PORT}: ACS control word 0x001d"], id="requests"
        ),
        pytest.param(
            0x0011, 0x0019, {}, "slow", [f"{GPU_PORT}: ACS control word 0x0019"], id="completions"
        ),
        pytest.param(0x005D, 0x005D, {"ats_enabled": True}, "ok", [], id="translated passes"),
        pytest.param(
            0x005D, 0x001D, {"ats_enabled": True}, "ok", [], id="as virtual machines need it"
        ),
        pytest.param(
            0x001D,
            0x005D,
            {"ats_enabled": True},
            "slow",
            [
                f"{NIC_PORT}: ACS control word 0x001d",
                f"{GPU_PORT}: ACS control word 0x005d",
            ],
            id="translated at the wrong port",
        ),
        pytest.param(
            0x005D,
            0x001D,
            {"ats_enabled": False},
            "slow",
            [
                f"{NIC_PORT}: ACS control word 0x005d",
                f"{GPU_PORT}: ACS control word 0x001d",
            ],
            id="the right ports, but the NIC translates nothing",
        ),
        pytest.param(
            0x005D,
            0x0011,
            {"ats_enabled": False},
            "slow",
            [f"{NIC_PORT}: ACS control word 0x005d"],
            id="translated, but the NIC translates nothing",
        ),
        pytest.param(None, None, {}, "ok", [], id="ports without the capability"),
    ],
)
def test_redirection_is_judged_at_the_ports_where_the_way_turns(
    nic_word: int | None,
    gpu_word: int | None,
    nic_facts: Mapping[str, object],
    verdict: str,
    reasons: list[str],
) -> None:
    answer = pair(
        {
            NIC_PORT: {"acs_control": nic_word},
            GPU_PORT: {"acs_control": gpu_word},
            NIC: nic_facts,
        }
    )
    assert answer.verdict == verdict
    assert [check.detail for check in answer.checks] == reasons
    assert set(names(answer)) <= {"AcsRedirect"}


def test_a_control_word_further_up_does_not_matter() -> None:
    assert pair({ROOT_BRIDGE: {"acs_control": 0x1D}, UP: {"acs_control": 0x1D}}).verdict == "ok"


def test_a_port_whose_configuration_cannot_be_read_is_not_called_ready() -> None:
    answer = pair({NIC_PORT: {"port_type": None, "acs_control": None}})
    assert (answer.verdict, names(answer)) == ("unknown", ["AcsUnreadable"])


def apart(gpu_word: int = 0, node: int = 0, root: str = "pci0000:15") -> tuple[DeviceView, PciTree]:
    """The GPU below a root port of its own."""
    other = "0000:15:02.0"
    result = tree({GPU: {"bridges": (other,), "root": root}})
    port = replace(result.functions[ROOT_BRIDGE], address=other, acs_control=gpu_word)
    result = replace(result, functions={**result.functions, other: port})
    path = result.functions[GPU].path
    return view(result, numa_node=node, root=root, path=path), result


@pytest.mark.parametrize(
    ("shape", "level", "reasons"),
    [
        pytest.param(apart(), "PHB", ["ThroughHostBridge"], id="one host bridge"),
        pytest.param(apart(root="pci0000:30"), "NODE", ["ThroughHostBridge"], id="one memory node"),
        pytest.param(apart(node=1, root="pci0000:30"), "SYS", ["FarApart"], id="two nodes"),
        pytest.param(
            apart(gpu_word=0x10), "PHB", ["ThroughHostBridge", "AcsRedirect"], id="forwarding"
        ),
    ],
)
def test_through_the_root_it_is_slow(
    shape: tuple[DeviceView, PciTree], level: str, reasons: list[str]
) -> None:
    (answer,) = check_pairs(*shape, MEANS)
    assert (answer.level, answer.verdict, names(answer)) == (level, "slow", reasons)


def test_with_a_coherent_link_the_cpus_nic_is_near_enough() -> None:
    shape, result = apart()
    link = DeviceLink(a=GPU, b="cpu0", type="C2C", count=10)
    (answer,) = check_pairs(replace(shape, links=(link,)), result, MEANS)
    assert (answer.level, answer.verdict) == ("PHB", "ok")


@pytest.mark.parametrize(
    ("means", "verdict", "reason"),
    [
        pytest.param(MEANS, "ok", [], id="a module"),
        pytest.param(OPEN, "ok", [], id="dma-buf"),
        pytest.param(GpuDirectHost(), "no", ["DriverMissing"], id="no driver"),
        pytest.param(replace(MEANS, peer_memory=None), "no", ["PeerMemoryMissing"], id="neither"),
        pytest.param(replace(OPEN, kernel=(5, 11)), "no", ["DmaBufTooOld"], id="old kernel"),
        pytest.param(replace(OPEN, driver_major=510), "no", ["DmaBufTooOld"], id="old driver"),
        pytest.param(replace(OPEN, kernel=None), "unknown", ["DmaBufUnknown"], id="which kernel"),
        pytest.param(replace(OPEN, kernel=(6, 1)), "ok", [], id="6.1 is newer than 5.12"),
    ],
)
def test_without_a_way_into_gpu_memory_there_is_none(
    means: GpuDirectHost, verdict: str, reason: list[str]
) -> None:
    answer = pair({}, means)
    assert (answer.verdict, names(answer)) == (verdict, reason)


def test_a_way_that_nobody_knows_of_is_not_called_slow() -> None:
    shape, result = apart()
    (answer,) = check_pairs(shape, result, replace(OPEN, kernel=None))
    assert answer.verdict == "unknown"


@pytest.mark.parametrize(
    ("types", "verdict", "reasons"),
    [
        pytest.param(((1, "identity"), (2, "identity")), "ok", [], id="passthrough"),
        pytest.param(
            ((1, "DMA-FQ"), (2, "identity")), "slow", ["IommuTranslating"], id="the GPU's"
        ),
        pytest.param(((1, "DMA"), (2, "DMA")), "slow", ["IommuTranslating"] * 2, id="both"),
        pytest.param((), "unknown", ["IommuUnknown"] * 2, id="types not readable"),
    ],
)
def test_translated_addresses_are_slow(
    types: tuple[tuple[int, str], ...], verdict: str, reasons: list[str]
) -> None:
    answer = pair({GPU: {"iommu_group": 1}, NIC: {"iommu_group": 2}}, iommu_types=types)
    assert (answer.verdict, names(answer)) == (verdict, reasons)


def test_a_virtual_machine_hides_too_much_to_say_anything() -> None:
    hidden = {a: {"port_type": None} for a in (ROOT_BRIDGE, UP, NIC_PORT, GPU_PORT, GPU, NIC)}
    answer = pair(hidden)
    assert answer.verdict == "unknown"
    assert names(answer) == ["AcsUnreadable", "AcsUnreadable", "NothingReadable"]
    shape, result = apart()
    blind = replace(
        result,
        functions={a: replace(f, port_type=None) for a, f in result.functions.items()},
    )
    assert [p.verdict for p in check_pairs(shape, blind, MEANS)] == ["unknown"]
    assert [p.verdict for p in check_pairs(shape, blind, GpuDirectHost())] == ["no"]


def test_a_machine_without_any_acs_and_iommu_groups_is_taken_for_a_virtual_one() -> None:
    hidden = {a: {"acs_control": None} for a in (ROOT_BRIDGE, NIC_PORT, GPU_PORT)}
    answer = pair(hidden)
    assert (answer.verdict, names(answer)) == ("unknown", ["NothingReadable"])


def test_lost_lanes_are_named() -> None:
    result = tree()
    link = PciLink(speed=320, width=8, max_speed=320, max_width=16)
    (answer,) = check_pairs(view(result, link=link, link_degraded="width"), result, MEANS)
    assert [check.detail for check in answer.checks] == [f"{GPU}: 8 of 16 lanes"]
    assert answer.verdict == "slow"


def test_one_chip_of_two_levels_is_one_switch() -> None:
    chip = {"vendor_id": 0x1000, "device_id": 0xC010, "subsystem_vendor_id": 0x1000}
    outer = {**chip, "subsystem_device_id": 0xA001}
    inner_up, inner_down = "0000:19:00.0", "0000:1a:00.0"
    way = (ROOT_BRIDGE, UP, GPU_PORT, inner_up, inner_down)
    result = tree({UP: outer, GPU: {"bridges": way}})
    port = result.functions[GPU_PORT]
    more = {
        inner_up: replace(
            result.functions[UP], address=inner_up, bridges=way[:3], subsystem_device_id=0xA002
        ),
        inner_down: replace(port, address=inner_down, bridges=way[:4]),
    }
    result = replace(result, functions={**result.functions, **more})
    (answer,) = check_pairs(view(result, path=result.functions[GPU].path), result, MEANS)
    assert (answer.level, answer.verdict) == ("PIX", "ok")


def test_only_our_own_devices_on_the_bus_make_pairs() -> None:
    result = tree()
    good, nic = device(GPU, result), device(NIC, result)
    changes: tuple[Mapping[str, object], ...] = (
        {"managed": False},
        {"vendor": "amd"},
        {"kind": DeviceKind.NPU},
        {"bus_id": None},
    )
    for change in changes:
        odd = replace(good, info=replace(good.info, **change))
        assert check_pairs(DeviceView(devices=(odd, nic)), result, MEANS) == ()
    soft = replace(nic, info=replace(nic.info, bus_id=None))
    assert check_pairs(DeviceView(devices=(good, soft)), result, MEANS) == ()


def test_devices_that_sysfs_does_not_show_are_not_called_ready() -> None:
    shape = view(tree())
    (answer,) = check_pairs(shape, PciTree(), MEANS)
    assert answer.verdict == "unknown"
