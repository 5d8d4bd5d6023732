from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.recording.tree import ErrorEntry, LinkEntry
from plugins.vendors.rdma.sysfs.ports import (
    Gid,
    PortReader,
    gid_type,
    has_carrier,
    port_netdev,
    port_numbers,
    preferred_gid,
    read_gids,
    read_port_state,
)
from tests.unit.rdma import made

BASE = "/sys/class/infiniband/mlx5_0"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def gid(last: int) -> str:
    return f"fec0:0000:0000:0000:0000:0000:0000:{last:04x}"


def table(*gids: str | None, kind: str = "RoCE v2") -> made.Entries:
    """Make an address table; `None` is a slot that refuses."""
    made_: made.Entries = {f"{BASE}/ports/1/link_layer": b"Ethernet\n"}
    for index, value in enumerate(gids):
        path = f"{BASE}/ports/1/gids/{index}"
        made_[path] = ErrorEntry(errno.EINVAL) if value is None else value.encode()
        made_[f"{BASE}/ports/1/gid_attrs/types/{index}"] = (
            kind.encode() if value and value != ZERO else ErrorEntry(errno.EINVAL)
        )
    return made_


@pytest.mark.parametrize(
    ("gids", "indices"),
    [
        pytest.param((gid(1), gid(2)), [0, 1], id="two"),
        pytest.param((gid(1), *(ZERO for _ in range(15)), gid(2)), [0, 16], id="fifteen-empty"),
        pytest.param((gid(1), *(ZERO for _ in range(16)), gid(2)), [0], id="sixteen-empty"),
        pytest.param((None, gid(2), "garbage", gid(3)), [1, 3], id="errors-are-empty"),
        pytest.param(tuple(gid(n) for n in range(300)), list(range(256)), id="row-5-256-at-most"),
        pytest.param((), [], id="none"),
    ],
)
def test_an_address_table(gids: tuple[str | None, ...], indices: list[int]) -> None:
    result = read_gids(made.tree(table(*gids)), "mlx5_0", 1)
    assert [item.index for item in result] == indices


@pytest.mark.parametrize(
    ("words", "layer", "kind"),
    [
        ("IB/RoCE v1", "InfiniBand", "ib"),
        ("IB/RoCE v1", "Ethernet", "1"),
        ("RoCE v1", "Ethernet", "1"),
        ("RoCE v2", "Ethernet", "2"),
        (None, "Unknown", None),
        ("RoCE v3", "Ethernet", None),
    ],
)
def test_types_of_addresses(words: str | None, layer: str, kind: str | None) -> None:
    assert gid_type(words, layer) == kind


IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"


@pytest.mark.parametrize(
    ("gids", "layer", "index"),
    [
        pytest.param([(LOCAL, "2"), (gid(1), "2"), (IPV4, "2")], "Ethernet", 2, id="ipv4-first"),
        pytest.param([(LOCAL, "2"), (gid(1), "2")], "Ethernet", 1, id="70-beyond-the-link"),
        pytest.param([(IPV4, "1"), (LOCAL, "2")], "Ethernet", None, id="no-good-one"),
        pytest.param([(LOCAL, "ib"), (gid(1), "ib")], "InfiniBand", 0, id="infiniband"),
        pytest.param([], "InfiniBand", None, id="none"),
    ],
)
def test_the_preferred_address(gids: list[tuple[str, str]], layer: str, index: int | None) -> None:
    chosen = preferred_gid([Gid(index=n, gid=g, type=t) for n, (g, t) in enumerate(gids)], layer)
    assert (chosen.index if chosen else None) == index


def test_row_4_entries_that_are_no_ports_are_skipped() -> None:
    entries = {f"{BASE}/ports/{name}/state": b"" for name in ("0", "x", "2", "10", "256", "01")}
    assert port_numbers(made.tree(dict(entries)), "mlx5_0") == (2, 10)


@pytest.mark.parametrize(
    ("state", "seen", "readable"),
    [
        (b"4: ACTIVE\n\0\0", 4, True),
        (b"1: DOWN\n", 1, True),
        (b"ACTIVE\n", None, True),
        (b"", None, False),
        (b"\xff\xfe", None, True),
        (ErrorEntry(errno.EIO), None, False),
        (None, None, False),
    ],
)
def test_row_1_and_12_a_state_that_cannot_be_read(
    state: bytes | ErrorEntry | None, seen: int | None, readable: bool
) -> None:
    entries: made.Entries = {f"{BASE}/ports/1/rate": b"x"}
    if state is not None:
        entries[f"{BASE}/ports/1/state"] = state
    port_state = read_port_state(made.tree(entries), "mlx5_0", 1)
    assert (port_state.state, port_state.is_readable) == (seen, readable)


def netdevs(**files: tuple[str, str]) -> made.Entries:
    return {f"/sys/class/net/{name}/{file}": text.encode() for name, (file, text) in files.items()}


@pytest.mark.parametrize(
    ("entries", "number", "expected"),
    [
        pytest.param(netdevs(a=("dev_port", "0"), b=("dev_port", "1")), 2, "b", id="dev-port"),
        pytest.param(netdevs(a=("dev_port", "0"), b=("dev_port", "1")), 1, "a", id="first"),
        pytest.param(netdevs(a=("dev_id", "0x0"), b=("dev_id", "0x1")), 2, "b", id="dev-id"),
        pytest.param(netdevs(a=("dev_port", "4"), b=("dev_port", "5")), 1, None, id="neither"),
    ],
)
def test_the_network_device_of_a_port(
    entries: made.Entries, number: int, expected: str | None
) -> None:
    assert port_netdev(made.tree(entries), number, 2, (), ("a", "b")) == expected


def test_ipoib_is_matched_by_its_hardware_address() -> None:
    head = b"80:00:00:48:fe:80:00:00:00:00:00:00"
    entries: made.Entries = {
        "/sys/class/net/ib0/type": b"32\n",
        "/sys/class/net/ib0/address": head + b":00:11:75:00:00:77:cf:c8",
        "/sys/class/net/ib1/type": b"32\n",
        "/sys/class/net/ib1/address": head + b":00:11:75:00:00:77:cf:c9",
    }
    gids = (Gid(index=0, gid="fe80:0000:0000:0000:0011:7500:0077:cfc9"),)
    assert port_netdev(made.tree(entries), 1, 2, gids, ("ib0", "ib1")) == "ib1"


def test_a_port_that_is_down_has_no_rate() -> None:
    entries = made.function("0000:18:00.0") | made.device(
        "0000:18:00.0", "mlx5_0", states=(made.ACTIVE, made.DOWN)
    )
    ports, _ = PortReader(made.tree(entries)).read("mlx5_0", (), 0)
    assert [port.rate_mbps for port in ports] == [400000, None]


def test_addresses_are_read_again_after_five_minutes_or_with_another_state(
    tmp_path: Path,
) -> None:
    state = f"{BASE}/ports/1/state"
    reader = PortReader(made.disk(tmp_path, table(gid(1)) | {state: b"4: ACTIVE"}))

    def shown(now_s: float) -> str | None:
        return reader.read("mlx5_0", (), now_s)[0][0].gid

    assert shown(0) == gid(1)
    made.disk(tmp_path, table(gid(2)))
    assert shown(299) == gid(1)
    assert shown(300) == gid(2)
    made.disk(tmp_path, table(gid(3)) | {state: b"1: DOWN"})
    assert shown(301) == gid(3)


def test_addresses_are_read_again_when_a_network_device_came_or_was_renamed(
    tmp_path: Path,
) -> None:
    reader = PortReader(made.disk(tmp_path, table(gid(1))))

    def shown(*netdevs: str) -> str | None:
        return reader.read("mlx5_0", netdevs, 0)[0][0].gid

    assert shown("eth0") == gid(1)
    made.disk(tmp_path, table(gid(2)))
    assert shown("eth0") == gid(1)
    assert shown("ens1np0") == gid(2)
    made.disk(tmp_path, table(gid(3)) | {"/sys/class/net/ens1np0/upper_vlan7/ifindex": b"9"})
    assert shown("ens1np0") == gid(3)


def test_names_of_network_devices_that_lead_elsewhere_are_ignored() -> None:
    entries = table(gid(1)) | {f"{BASE}/ports/1/gid_attrs/ndevs/0": b"../../etc"}
    assert PortReader(made.tree(entries)).read("mlx5_0", ("eth0",), 0)[1] == ("eth0",)


@pytest.mark.parametrize(("text", "up"), [(b"1\n", True), (b"0\n", False), (b"", None)])
def test_carrier(text: bytes, up: bool | None) -> None:
    entries: made.Entries = {
        "/sys/class/net/eth0": LinkEntry("../../devices/virtual/net/eth0"),
        "/sys/devices/virtual/net/eth0/carrier": text,
    }
    assert has_carrier(made.tree(entries), "eth0") is up
