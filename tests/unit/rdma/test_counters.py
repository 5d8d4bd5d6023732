from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.recording.tree import ErrorEntry
from plugins.vendors.rdma.metrics import FAMILIES, PREFIX
from plugins.vendors.rdma.sysfs.counters import (
    MAX_HW,
    CountedDevice,
    CounterReader,
    list_counter_files,
    readings_of,
)
from tests.captures import capture, needs_shared
from tests.unit.rdma import made

BASE = "/sys/class/infiniband/mlx5_0"
PORT = f"{BASE}/ports/1"


def values(entries: made.Entries) -> dict[tuple[str, ...], float]:
    """Read all counters of port 1; the key is the family and what follows the port."""
    host = made.tree(entries)
    reader = CounterReader(host)
    result = {}
    for file in list_counter_files(host, CountedDevice(name="mlx5_0", ports=(1,))):
        for reading in readings_of(file, reader.value(file.path)):
            result[(reading.family.removeprefix(PREFIX), *reading.labels[2:])] = reading.value
    return result


def counter(name: str, value: bytes, folder: str = "counters") -> made.Entries:
    return {f"{PORT}/{folder}/{name}": value + b"\n"}


def captured(name: str, port: int) -> dict[str, float]:
    host = capture("procfs-mlx4")
    reader = CounterReader(host)
    return {
        reading.family.removeprefix(PREFIX): reading.value
        for file in list_counter_files(host, CountedDevice(name=name, ports=(port,)))
        for reading in readings_of(file, reader.value(file.path))[:1]
    }


@needs_shared
@pytest.mark.parametrize(
    ("name", "port", "family", "value"),
    [
        pytest.param("mlx5_0", 1, "port_transmit_bytes_total", 11523046035392, id="14-sent"),
        pytest.param("mlx5_0", 1, "port_receive_bytes_total", 72505381512, id="14-received"),
        pytest.param("mlx4_0", 1, "port_transmit_bytes_total", 106036453180, id="15-sent"),
        pytest.param("mlx4_0", 2, "port_transmit_wait_total", 3846, id="ticks"),
        pytest.param("mlx5_0", 1, "port_unicast_receive_packets_total", 541889824, id="unicast"),
        pytest.param("mlx5_0", 1, "port_transmit_packets_total", 10907922116, id="packets"),
    ],
)
def test_captured_counters(name: str, port: int, family: str, value: int) -> None:
    assert captured(name, port)[family] == value


@pytest.mark.parametrize(
    "content",
    [b"N/A (no PMA)", b"-1", b"0x10", b"18446744073709551616", b"1" * 40, b"", b"\0", b"\xff"],
    ids=["15", "negative", "hex", "too-large", "forty-digits", "empty", "nul", "not-utf-8"],
)
def test_row_13_a_bad_counter_loses_itself_alone(content: bytes) -> None:
    result = values(counter("port_rcv_errors", content) | counter("symbol_error", b"7"))
    assert ("port_receive_errors_total",) not in result
    assert result["port_symbol_errors_total",] == 7


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EACCES])
def test_row_1_a_counter_that_refuses_loses_itself_alone(number: int) -> None:
    result = values(
        {f"{PORT}/counters/port_xmit_data": ErrorEntry(number)} | counter("port_rcv_data", b"1")
    )
    assert result["port_receive_bytes_total",] == 4
    assert ("port_transmit_bytes_total",) not in result


@pytest.mark.parametrize(
    ("name", "value", "saturated"),
    [
        pytest.param("link_downed", 255, 1, id="79-eight-bits"),
        pytest.param("link_downed", 254, 0, id="79-below"),
        pytest.param("symbol_error", 65535, 1, id="sixteen-bits"),
        pytest.param("symbol_error", 65536, 0, id="a-wider-field"),
        pytest.param("local_link_integrity_errors", 15, 1, id="four-bits"),
        pytest.param("port_xmit_data", 2**32 - 1, 1, id="old-data"),
        pytest.param("port_xmit_data", 2**40, 0, id="data-beyond-32-bits"),
    ],
)
def test_a_counter_at_the_end_of_its_field(name: str, value: int, saturated: int) -> None:
    result = values(counter(name, str(value).encode()))
    assert result["counter_saturated", name] == saturated


def test_the_extended_set_has_no_end() -> None:
    result = values(
        counter("port_xmit_data", str(2**32 - 1).encode()) | counter("unicast_xmit_packets", b"1")
    )
    assert ("counter_saturated", "port_xmit_data") not in result


def test_old_kernels_have_the_wide_counters_beside() -> None:
    result = values(
        counter("port_xmit_data", b"4294967295")
        | counter("port_xmit_data_64", b"4294967300", "counters_ext")
        | counter("port_unicast_xmit_packets", b"5", "counters_ext")
    )
    assert result["port_transmit_bytes_total",] == 4 * 4294967300
    assert result["port_unicast_transmit_packets_total",] == 5
    assert ("counter_saturated", "port_xmit_data") not in result


def test_the_age_of_values_is_no_counter() -> None:
    result = values(
        counter("lifespan", b"12", "hw_counters") | counter("out_of_buffer", b"3", "hw_counters")
    )
    assert result == {("port_hw_total", "out_of_buffer"): 3}


def test_row_5_at_most_512_of_a_drivers_counters() -> None:
    entries: made.Entries = {f"{PORT}/hw_counters/c{n:04}": b"1" for n in range(2000)}
    result = values(entries)
    assert len(result) == MAX_HW
    assert ("port_hw_total", "c0000") in result


def test_a_driver_without_counters_has_none() -> None:
    assert values({f"{PORT}/state": b"4: ACTIVE"}) == {}


def test_counters_of_all_ports_together() -> None:
    host = made.tree({f"{BASE}/hw_counters/resets": b"2\n"})
    (file,) = list_counter_files(host, CountedDevice(name="mlx5_0", ports=()))
    assert (file.family, file.labels) == (f"{PREFIX}device_hw_total", ("mlx5_0", "resets"))


def test_a_file_is_opened_once_and_read_again(tmp_path: Path) -> None:
    path = f"{PORT}/counters/symbol_error"
    reader = CounterReader(made.disk(tmp_path, {path: b"1\n"}))
    assert reader.value(path) == 1
    before = len(os.listdir("/proc/self/fd"))
    made.disk(tmp_path, {path: b"22\n"})
    assert reader.value(path) == 22
    assert len(os.listdir("/proc/self/fd")) == before
    reader.retain(set())
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_missing_file_is_opened_again_later(tmp_path: Path) -> None:
    path = f"{PORT}/counters/symbol_error"
    reader = CounterReader(made.disk(tmp_path, {}))
    assert reader.value(path) is None
    made.disk(tmp_path, {path: b"4\n"})
    assert reader.value(path) == 4
    reader.retain(set())


def test_every_family_is_declared_once_and_counters_end_in_total() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all((family.type == "counter") is family.name.endswith("_total") for family in FAMILIES)
    assert all(family.help.endswith(".") for family in FAMILIES)
