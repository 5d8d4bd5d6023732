"""Messages of the kernel, and such as nobody should send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.uevents import (
    MAX_UEVENT_BYTES,
    NO_ACTION,
    NO_DEVPATH,
    ODD_ACTION,
    TOO_LONG,
    RescanScope,
    Uevent,
    parse_uevent,
)

BRIDGE = "/devices/pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:03.0"
HOST, RDMA, CARDS = RescanScope.HOST, RescanScope.RDMA, RescanScope.ACCELERATORS

# in the form that Linux sends: a card and a NIC come and leave, and what else happens on a node
GPU_ADDED = f"""\
ACTION=add
DEVPATH={BRIDGE}/0000:26:00.0
SUBSYSTEM=pci
PCI_CLASS=30200
PCI_ID=10DE:2330
PCI_SUBSYS_ID=10DE:16C1
PCI_SLOT_NAME=0000:26:00.0
MODALIAS=pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00
SEQNUM=2116"""
NIC_BOUND = f"""\
ACTION=bind
DEVPATH={BRIDGE}/0000:56:00.0
SUBSYSTEM=pci
DRIVER=e1000e
PCI_CLASS=20000
PCI_ID=8086:10D3
PCI_SLOT_NAME=0000:56:00.0
SEQNUM=2121"""
NET_ADDED = f"""\
ACTION=add
DEVPATH={BRIDGE}/0000:56:00.0/net/eth4
SUBSYSTEM=net
INTERFACE=eth4
IFINDEX=7
SEQNUM=2119"""
RDMA_RENAMED = f"""\
ACTION=move
DEVPATH={BRIDGE}/0000:56:00.0/infiniband/ibp86s0
SUBSYSTEM=infiniband
NAME=ibp86s0
DEVPATH_OLD={BRIDGE}/0000:56:00.0/infiniband/mlx5_0
SEQNUM=2130"""
RXE_ADDED = """\
ACTION=add
DEVPATH=/devices/virtual/infiniband_verbs/uverbs0
SUBSYSTEM=infiniband_verbs
MAJOR=231
MINOR=192
DEVNAME=infiniband/uverbs0
SEQNUM=1980"""
CARD_LEFT = f"""\
ACTION=remove
DEVPATH={BRIDGE}/0000:26:00.0
SUBSYSTEM=pci
PCI_SLOT_NAME=0000:26:00.0
SEQNUM=2140"""
UNBOUND = CARD_LEFT.replace("ACTION=remove", "ACTION=unbind")
POD_NET = """\
ACTION=add
DEVPATH=/devices/virtual/net/veth8a1b2c
SUBSYSTEM=net
INTERFACE=veth8a1b2c
SEQNUM=2200"""
MODULE = "ACTION=add\nDEVPATH=/module/nvidia_uvm\nSUBSYSTEM=module\nSEQNUM=2201"
OTHER_MODULE = "ACTION=add\nDEVPATH=/module/nf_conntrack\nSUBSYSTEM=module\nSEQNUM=2202"
CPU = "ACTION=offline\nDEVPATH=/devices/system/cpu/cpu3\nSUBSYSTEM=cpu\nSEQNUM=2203"
NULL = "ACTION=change\nDEVPATH=/devices/virtual/mem/null\nSUBSYSTEM=mem\nSEQNUM=2204"


def fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def event(text: str) -> Uevent:
    uevent = parse_uevent(fields(text))
    assert isinstance(uevent, Uevent)
    return uevent


@pytest.mark.parametrize(
    ("text", "parts", "address"),
    [
        pytest.param(GPU_ADDED, {HOST, RDMA, CARDS}, "0000:26:00.0", id="a card comes"),
        pytest.param(NIC_BOUND, {HOST, RDMA, CARDS}, "0000:56:00.0", id="its driver has it"),
        pytest.param(NET_ADDED, {RDMA}, "0000:56:00.0", id="a NIC's interface comes"),
        pytest.param(RDMA_RENAMED, {RDMA}, "0000:56:00.0", id="an RDMA device is renamed"),
        pytest.param(RXE_ADDED, {RDMA}, None, id="soft-RoCE comes"),
        pytest.param(CARD_LEFT, {HOST, RDMA, CARDS}, "0000:26:00.0", id="a card leaves"),
        pytest.param(MODULE, {HOST, RDMA, CARDS}, None, id="a driver is loaded"),
        pytest.param(CPU, {HOST}, None, id="a CPU goes offline"),
        pytest.param(POD_NET, set(), None, id="a pod starts"),
        pytest.param(OTHER_MODULE, set(), None, id="any other module"),
        pytest.param(NULL, set(), None, id="any other device"),
    ],
)
def test_an_event_names_the_parts_to_read_again(
    text: str, parts: set[RescanScope], address: str | None
) -> None:
    result = event(text)
    assert (result.scopes(("nvidia",)), result.address) == (frozenset(parts), address)
    assert result.sequence_number == int(fields(text)["SEQNUM"])


def test_only_a_function_that_is_removed_is_gone() -> None:
    assert [event(text).is_function_removed for text in (CARD_LEFT, UNBOUND, NET_ADDED)] == [
        True,
        False,
        False,
    ]
    moved = RDMA_RENAMED.replace("ACTION=move", "ACTION=remove")  # into another namespace
    assert not event(moved).is_function_removed
    assert [event(text).is_function_added for text in (GPU_ADDED, NIC_BOUND, NET_ADDED)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"ACTION": ""}, NO_ACTION, id="no action"),
        pytest.param({"ACTION": "explode"}, ODD_ACTION, id="hostile-21-an-action-nobody-knows"),
        pytest.param({"DEVPATH": ""}, NO_DEVPATH, id="no path"),
        pytest.param({"DEVPATH": "devices/x"}, NO_DEVPATH, id="no path of the kernel"),
        pytest.param({"MODALIAS": "x" * MAX_UEVENT_BYTES}, TOO_LONG, id="too long"),
        pytest.param({"MODALIAS": "x" * (10 << 20)}, TOO_LONG, id="hostile-21-ten-mebibytes"),
    ],
)
def test_an_invalid_event_is_dropped_with_a_reason(change: dict[str, str], reason: str) -> None:
    assert parse_uevent({**fields(GPU_ADDED), **change}) == reason


@pytest.mark.parametrize("number", ["", "-1", "x", "٣", "9" * 5000])
def test_an_odd_sequence_number_is_none(number: str) -> None:
    uevent = parse_uevent({**fields(GPU_ADDED), "SEQNUM": number})
    assert isinstance(uevent, Uevent)
    assert uevent.sequence_number is None


@given(st.dictionaries(st.sampled_from(list(fields(GPU_ADDED))) | st.text(max_size=9), st.text()))
def test_no_message_does_any_harm(message: dict[str, str]) -> None:
    uevent = parse_uevent(message)
    assert isinstance(uevent, str) or isinstance(uevent.scopes(()), frozenset)
