from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.vendors.nvidia.health.kernel_log import DriverLoaded, LoggedXid, address, parse_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen"
            " off the bus.",
            LoggedXid(card="0000:05:00", number=79),
            id="V36",
        ),
        pytest.param(
            "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
            LoggedXid(card="0000:c1:00", number=79),
            id="V37",
        ),
        pytest.param(
            "NVRM: The NVIDIA GPU 0000:C1:00.0\nNVRM: (PCI ID: 10de:2330) installed in this "
            "system has\nNVRM: fallen off the bus and is not responding to commands.",
            LoggedXid(card="0000:c1:00", number=79),
            id="the-other-text-of-a-lost-card",
        ),
        pytest.param(
            "NVRM: Xid (0009:01:00): 31, pid=2761, name=python3, Ch 00000008",
            LoggedXid(card="0009:01:00", number=31, pid=2761),
            id="without-PCI",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 95, pid='1234', name=a",
            LoggedXid(card="0000:3b:00", number=95, instance=5, pid=1234),
            id="of-a-GPU-instance",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link 17 (0x004505c6 0x00000000)",
            LoggedXid(card="0018:01:00", number=149, is_fatal=True, link=17),
            id="V35-fatal",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR Nonfatal XC1 i0 Link 03 (0x00450000)",
            LoggedXid(card="0018:01:00", number=149, is_fatal=False, link=3),
            id="V35-nonfatal",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6"
            " 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            LoggedXid(card="0018:01:00", number=149, is_fatal=True, link=8),
            id="padded-columns",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK   Nonfatal XC1 i11 Link 17 (0x1)",
            LoggedXid(card="0018:01:00", number=145, is_fatal=False, link=17),
            id="padded-columns-nonfatal",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]",
            LoggedXid(card="0018:01:00", number=149, is_fatal=True, link=1),
            id="before-R575",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Nonfatal XC 0 i 0 Link 03",
            LoggedXid(card="0018:01:00", number=149, is_fatal=False, link=3),
            id="before-R575-nonfatal",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x2"
            " (Node Reboot Required)",
            LoggedXid(card="0000:05:00", number=154, action=2),
            id="recovery-action",
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c6:00.0): 20009, Non-fatal, Link 27 RX Short Error",
            LoggedXid(card="0000:c6:00", number=20009, is_fatal=False, link=27, switch=3),
            id="of-a-switch",
        ),
        pytest.param(
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 1",
            DriverLoaded(),
            id="loaded",
        ),
        ("NVRM: Xid (PCI:0000:05:00): many", None),
        ("NVRM: GPU at PCI:0000:05:00: GPU-0000", None),
        ("audit: NVRM fell off", None),
        ("", None),
    ],
)
def test_a_line_names_card_and_number(line: str, expected: object) -> None:
    assert parse_line(line) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00", "0000:3b:00"),
        ("00010000:01:00", "00010000:01:00"),
        ("0009:01:00", "0009:01:00"),
    ],
)
def test_an_address_is_written_as_sysfs_does(text: str, expected: str) -> None:
    assert address(text) == expected


@given(
    st.text(max_size=400) | st.text(max_size=100).map("NVRM: Xid (PCI:0000:05:00): 48, {}".format)
)
def test_no_line_is_too_odd(line: str) -> None:
    parsed = parse_line(line)
    assert parsed is None or isinstance(parsed, LoggedXid | DriverLoaded)
