from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.edits import UNLIMITED_RLIMIT
from agent.verification import procfs
from agent.verification.container_check import allowed_access, allows_every_device
from agent.verification.observation import DeviceRule, MountOrigin, ObservedMount, ResourceLimit
from agent.verification.runtime_record import parse_runtime_record

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         65536                unlimited            bytes
Max open files            1024                 524288               files
"""
TABLE = (
    b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    b"37 36 0:21 /a\\040b /dev/with\\134slash rw - tmpfs tmpfs rw\n"
)


def test_an_environment_keeps_its_order_and_passes_over_what_is_no_variable() -> None:
    data = b"A=1\0B=x=y\0nonsense\0=odd\0EMPTY=\0\xff=\xfe\0"
    variables = procfs.parse_environ(data)
    assert variables == (("A", "1"), ("B", "x=y"), ("EMPTY", ""), ("\\xff", "\\xfe"))


def test_a_mount_table_is_read_with_its_escapes_and_optional_fields() -> None:
    assert procfs.parse_mountinfo(TABLE) == (
        ObservedMount("/mnt2", MountOrigin("98:0", "/mnt1"), "ext3"),
        ObservedMount("/dev/with\\slash", MountOrigin("0:21", "/a b"), "tmpfs"),
    )


def test_limits_are_known_by_the_runtimes_names() -> None:
    assert procfs.parse_limits(LIMITS) == (
        ResourceLimit("RLIMIT_MEMLOCK", 65536, UNLIMITED_RLIMIT),
        ResourceLimit("RLIMIT_NOFILE", 1024, 524288),
    )


def test_device_rules_are_read_as_the_kernel_prints_them() -> None:
    rules = procfs.parse_rules("c *:* m\nc 195:0 rw\nb 8:* r\nnonsense\na *:* rwm\n")
    assert rules == (
        DeviceRule("c", None, None, "m"),
        DeviceRule("c", 195, 0, "rw"),
        DeviceRule("b", 8, None, "r"),
        DeviceRule("a", None, None, "rwm"),
    )


def test_the_files_of_this_process_are_parsed() -> None:
    here = Path("/proc/self")
    assert dict(procfs.parse_environ((here / "environ").read_bytes()))["PATH"]
    assert any(m.path == "/" for m in procfs.parse_mountinfo((here / "mountinfo").read_bytes()))
    names = {limit.name for limit in procfs.parse_limits((here / "limits").read_text())}
    assert names == set(procfs.LIMIT_NAMES.values())
    started = procfs.parse_start_ticks((here / "stat").read_bytes())
    assert started is not None
    assert started > 0


@pytest.mark.parametrize(
    ("stat", "started"),
    [
        (b"7 (a) b) S " + b"0 " * 18 + b"4711 0", 4711),
        (b"7 (x", None),
        (b"", None),
        (b"7 (x) S 1 2", None),
    ],
)
def test_a_process_may_have_any_name(stat: bytes, started: int | None) -> None:
    assert procfs.parse_start_ticks(stat) == started


@given(st.binary(max_size=400))
def test_no_bytes_that_a_container_can_write_break_a_parser(data: bytes) -> None:
    procfs.parse_environ(data)
    procfs.parse_mountinfo(data)
    procfs.parse_start_ticks(data)
    procfs.parse_limits(data.decode("ascii", "replace"))
    procfs.parse_rules(data.decode("ascii", "replace"))
    parse_runtime_record(data)


@given(st.lists(st.sampled_from(TABLE.replace(b"\n", b" ").split(b" ")), max_size=30))
def test_no_order_of_a_mount_tables_words_breaks_its_parser(words: list[bytes]) -> None:
    procfs.parse_mountinfo(b" ".join(words))


def test_later_device_rules_win_and_wildcards_reach_every_device() -> None:
    deny = DeviceRule("a", None, None, "rwm", is_allowed=False)
    assert allowed_access((deny, DeviceRule("c", 195, None, "rw")), 195, 3) == {"r", "w"}
    assert allowed_access(
        (DeviceRule("c", 195, None, "rwm"), DeviceRule("c", 195, 3, "w", is_allowed=False)), 195, 3
    ) == {
        "r",
        "m",
    }
    assert not allowed_access((DeviceRule("c", 195, 0, "rwm"), deny), 195, 0)
    assert not allowed_access((DeviceRule("b", 195, 0, "rwm"),), 195, 0)


def test_making_nodes_is_not_opening_them() -> None:
    assert not allows_every_device(
        (DeviceRule("c", None, None, "m"), DeviceRule("b", None, None, "m"))
    )
    assert allows_every_device((DeviceRule("a", None, None, "rwm"),))


def test_a_record_of_the_runtime_is_read_for_what_concerns_devices() -> None:
    record = parse_runtime_record(
        b"""{"ociVersion": "1.1.0", "process": {"env": ["A=1", "odd"], "rlimits":
        [{"type": "RLIMIT_MEMLOCK", "soft": 18446744073709551615, "hard": 1}]},
        "mounts": [{"destination": "/x", "type": "bind", "source": "/y"}],
        "linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
        "resources": {"devices": [{"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": -1, "minor": 3, "access": "rw"}]}}}"""
    )
    assert record is not None
    assert (record.env, record.mounts) == ((("A", "1"),), (("/x", "/y"),))
    assert record.limits == (ResourceLimit("RLIMIT_MEMLOCK", UNLIMITED_RLIMIT, 1),)
    assert record.nodes[0].path == "/dev/nvidia0"
    assert record.rules == (
        DeviceRule("a", None, None, "rwm", is_allowed=False),
        DeviceRule("c", None, 3, "rw"),
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"mounts": {}}', '{"linux": null}', '{"process": {"env": [1]}}']
)
def test_an_invalid_record_gives_no_facts(text: str) -> None:
    assert parse_runtime_record(text.encode()) is None


def test_a_deep_record_gives_no_facts() -> None:
    assert parse_runtime_record(b'{"x":' * 100_000) is None
