from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.aliases import Aliases

A = Aliases(b"salt")
macs = st.binary(min_size=6, max_size=6)


@given(macs)
def test_a_mac_keeps_its_flags_and_is_another(mac: bytes) -> None:
    alias = A.mac(mac)
    assert len(alias) == 6
    assert alias[0] & 3 == mac[0] & 3
    assert alias != mac or set(mac) <= {0, 0xFF}
    assert A.mac(mac) == alias


@given(macs)
def test_what_the_kernel_makes_of_a_mac_is_made_of_its_alias(mac: bytes) -> None:
    alias = A.mac(mac)
    eui64 = bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:]
    expected = bytes((alias[0] ^ 2,)) + alias[1:3] + b"\xff\xfe" + alias[3:]
    assert A.guid(eui64) == expected
    assert A.guid(mac[:3] + b"\x03\x00" + mac[3:]) == alias[:3] + b"\x03\x00" + alias[3:]
    link_local = b"\xfe\x80" + bytes(6)
    assert A.gid(link_local + eui64) == link_local + expected


@given(st.sets(st.binary(min_size=4, max_size=4), max_size=50))
def test_different_addresses_stay_different(addresses: set[bytes]) -> None:
    assert len({A.ipv4(address) for address in addresses}) == len(addresses)


@pytest.mark.parametrize(
    ("gid", "start"),
    [
        (bytes(10) + b"\xff\xff\xc0\xa8\x01\x02", bytes(10) + b"\xff\xff\x0a"),
        (b"\xfe\x80" + bytes(14), b"\xfe\x80" + bytes(14)),
        (bytes(16), bytes(16)),
        (b"\xfe\xc0" + bytes(6) + b"12345678", b"\xfe\xc0" + bytes(6)),
        (b"\x24\x08\x40\x02" + bytes(12), b"\x20\x01\x0d\xb8"),
        (b"\xfd\x12\x34\x56" + bytes(4) + b"12345678", b"\xfd\x12"),
    ],
)
def test_a_gid_stays_of_its_kind(gid: bytes, start: bytes) -> None:
    alias = A.gid(gid)
    assert len(alias) == 16
    assert alias.startswith(start)


@given(st.uuids(version=4))
def test_a_uuid_keeps_version_and_variant(uuid: object) -> None:
    digits = str(uuid).replace("-", "")
    alias = A.uuid(digits)
    assert len(alias) == 32
    assert alias != digits
    assert (alias[12], alias[16]) == (digits[12], digits[16])


@given(st.text(alphabet="ABZabz0189-_ .", min_size=1, max_size=40))
def test_a_serial_keeps_its_look(serial: str) -> None:
    alias = A.serial(serial)
    assert [(c.isdigit(), c.isupper(), c.islower()) for c in alias] == [
        (c.isdigit(), c.isupper(), c.islower()) for c in serial
    ]
    assert not alias.startswith("0") or serial.startswith("0")
    assert [c for c in alias if not c.isalnum()] == [c for c in serial if not c.isalnum()]


@pytest.mark.parametrize("name", ["gpu-17", "GPU-17", "gpu-17.rack2.example.com"])
def test_a_host_name_with_and_without_domain_becomes_one_label(name: str) -> None:
    assert A.host(name) == A.host("gpu-17")
    assert A.host(name).startswith("node-")


@pytest.mark.parametrize("unset", [bytes(6), b"\xff" * 6])
def test_unset_identifiers_stay(unset: bytes) -> None:
    assert A.mac(unset) == unset
    assert A.uuid("0" * 32) == "0" * 32


def test_another_salt_gives_other_names() -> None:
    other = Aliases(b"pepper")
    assert other.mac(b"abcdef") != A.mac(b"abcdef")
    assert other.serial("S4EVNX0M1234") != A.serial("S4EVNX0M1234")


def test_kinds_with_few_values_end_as_well() -> None:
    few = Aliases(b"salt")
    assert {len(few.serial(str(digit))) for digit in range(10)} == {1}
