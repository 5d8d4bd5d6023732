"""Readings of a chip through the stub library: error codes, HBM pages, links, traffic."""

from __future__ import annotations

import time

import pytest

from agent.snapshot.inventory import DeviceSample
from plugins.vendors.ascend.library.traffic import SYMBOLS
from plugins.vendors.ascend.metrics import FAMILIES
from tests.patience import PATIENCE_S
from tests.stubs.child import Child
from tests.stubs.dcmi.library import NETWORK_COUNTERS
from tests.stubs.dcmi.machines import b3 as one
from tests.unit.ascend.conftest import Machine

Readings = dict[tuple[str, ...], float]

TRAFFIC: dict[str, object] = {
    "packets": ",".join(str(number + 1) for number in range(len(NETWORK_COUNTERS))),
    "rdma": "12:34",
    "pcie_tx_p": "1:3:2",
    "pcie_tx_np": "0:0:0",
    "pcie_tx_cpl": "0:0:0",
    "pcie_rx_p": "4:6:5",
    "pcie_rx_np": "0:0:0",
    "pcie_rx_cpl": "0:0:0",
    "hccs_total": "3.5:7",
    "hccs_rate_tx": "0:1.5:2",
    "hccs_rate_rx": "0:3:4",
}


@pytest.fixture
def machine(b3: Machine) -> Machine:
    """Return the machine, whose scenario the test replaces."""
    return b3


def of(sample: DeviceSample) -> Readings:
    return {(reading.family, *reading.labels): reading.value for reading in sample.readings}


def sampled(machine: Machine, *lines: str) -> Readings:
    machine.stub.play("card_list 0", *lines)
    with machine.session() as child:
        child.discover()
        return of(child.sample()[0])


def wait_for(child: Child, family: str) -> Readings:
    """Return the first readings with a family; the traffic is read on another thread."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        values = of(child.sample()[0])
        if any(key[0] == family for key in values):
            return values
        time.sleep(0.02)
    raise TimeoutError(family)


def traffic(machine: Machine, **facts: object) -> Readings:
    """Return the readings of a chip once its whole traffic was read; HCCS packets are not."""
    machine.stub.play("card_list 0", *one(0, **{**TRAFFIC, **facts}))
    with machine.session() as child:
        child.discover()
        return wait_for(child, "xpu_npu_roce_events_total")


def test_each_active_error_code_has_a_series(machine: Machine) -> None:
    values = sampled(machine, *one(0, codes="8C2FA009,80CB8009,0"))
    assert {key: value for key, value in values.items() if "error_code" in key[0]} == {
        ("xpu_npu_error_code", "80CB8009"): 1,
        ("xpu_npu_error_code", "8C2FA009"): 1,
        ("xpu_npu_error_code_number", "0"): 0x80CB8009,
        ("xpu_npu_error_code_number", "1"): 0x8C2FA009,
    }


def test_a_chip_without_error_codes_has_no_series_of_them(machine: Machine) -> None:
    assert not [key for key in sampled(machine, *one(0)) if "error_code" in key[0]]


def test_an_error_code_of_an_event_is_in_the_next_sample(machine: Machine) -> None:
    machine.stub.play("card_list 0", *one(0))
    with machine.session() as child:
        child.discover()
        assert not [key for key in of(child.sample()[0]) if "error_code" in key[0]]
        machine.stub.add("chip.0.0.codes 80E01801")
        machine.stub.happen("0 0 80E01801 2 1")
        child.wait_event()
        assert of(child.sample()[0])["xpu_npu_error_code", "80E01801"] == 1


def test_isolated_pages_and_errors_since_the_reset_are_read(machine: Machine) -> None:
    values = sampled(machine, *one(0, ecc="7:2:3:1:5:4:0"))
    assert values["xpu_device_ecc_errors_total", "corrected"] == 7
    assert values["xpu_npu_hbm_errors_since_reset", "single_bit"] == 3
    assert values["xpu_npu_hbm_errors_since_reset", "double_bit"] == 1
    assert values["xpu_npu_hbm_isolated_pages", "single_bit"] == 5
    assert values["xpu_npu_hbm_isolated_pages", "double_bit"] == 4
    assert values["xpu_npu_hbm_ecc_enabled",] == 0


def test_a_count_that_no_memory_can_have_hides_no_other(machine: Machine) -> None:
    values = sampled(machine, *one(0, ecc="7:4294967295:1:1:4294967295:4:255"))
    assert values["xpu_device_ecc_errors_total", "corrected"] == 7
    assert ("xpu_device_ecc_errors_total", "uncorrected") not in values
    assert ("xpu_npu_hbm_isolated_pages", "single_bit") not in values
    assert values["xpu_npu_hbm_isolated_pages", "double_bit"] == 4
    assert ("xpu_npu_hbm_ecc_enabled",) not in values


def test_hccs_packets_are_counted_by_port(machine: Machine) -> None:
    values = sampled(machine, *one(0, hccs_tx="5,0,9", hccs_rx="6,0,8"))
    assert {key[1:]: n for key, n in values.items() if key[0] == "xpu_npu_hccs_packets_total"} == {
        ("0", "tx"): 5,
        ("0", "rx"): 6,
        ("2", "tx"): 9,
        ("2", "rx"): 8,
    }


def test_an_old_driver_counts_no_packets_with_all_bits_set(machine: Machine) -> None:
    values = sampled(machine, *one(0, hccs_tx="-1", hccs_rx="6", hccs_narrow=1))
    assert ("xpu_npu_hccs_packets_total", "0", "tx") not in values
    assert values["xpu_npu_hccs_packets_total", "0", "rx"] == 6


def test_traffic_is_read_in_base_units(machine: Machine) -> None:
    values = traffic(machine)
    number = {name: index + 1 for index, name in enumerate(NETWORK_COUNTERS)}
    expected: Readings = {
        ("xpu_npu_network_packets_total", "tx", "pause"): number["mac_tx_pause"],
        ("xpu_npu_network_packets_total", "rx", "bad_checksum"): number["mac_rx_fcs_errors"],
        ("xpu_npu_network_bytes_total", "rx", "bad"): number["mac_rx_bad_bytes"],
        ("xpu_npu_roce_packets_total", "rx", "error"): number["roce_rx_errors"],
        ("xpu_npu_roce_events_total", "retry"): number["roce_retries"],
        ("xpu_npu_network_bytes_per_second", "tx"): 12 << 20,
        ("xpu_npu_network_bytes_per_second", "rx"): 34 << 20,
        ("xpu_npu_pcie_bytes_per_second", "tx", "posted", "max"): (3 << 20) * 1000,
        ("xpu_npu_pcie_bytes_per_second", "rx", "posted", "average"): (5 << 20) * 1000,
        ("xpu_npu_hccs_bytes_per_second", "tx"): 3.5e9,
        ("xpu_npu_hccs_port_bytes_per_second", "1", "tx"): 1.5e9,
        ("xpu_npu_hccs_port_bytes_per_second", "2", "rx"): 4e9,
    }
    assert {key: values.get(key) for key in expected} == expected
    assert ("xpu_npu_hccs_port_bytes_per_second", "0", "tx") not in values
    labels = {family.name: len(family.labels) for family in FAMILIES}
    assert all(labels[key[0]] == len(key) - 1 for key in values)


@pytest.mark.parametrize(
    ("facts", "family"),
    [
        ({"rdma": "4294967295:4294967295"}, "xpu_npu_network_bytes_per_second"),
        ({"hccs_total": "nan:-1"}, "xpu_npu_hccs_bytes_per_second"),
        ({"hccs_rate_tx": "inf:1e300", "hccs_rate_rx": "-1:-1"}, "xpu_npu_hccs_port_bytes"),
        (
            {f"pcie_{name}": "4294967295:2000:-1" for name in ("tx_p", "tx_np", "tx_cpl")}
            | {f"pcie_{name}": "4294967295:2000:-1" for name in ("rx_p", "rx_np", "rx_cpl")},
            "xpu_npu_pcie_bytes_per_second",
        ),
        ({"rdma": None}, "xpu_npu_network_bytes_per_second"),
    ],
)
def test_traffic_that_no_chip_can_have_is_left_out(
    machine: Machine, facts: dict[str, object], family: str
) -> None:
    values = traffic(machine, **facts)
    assert not [key for key in values if key[0].startswith(family)]


def test_counters_with_all_bits_set_are_left_out(machine: Machine) -> None:
    counters = ["18446744073709551615"] * len(NETWORK_COUNTERS)
    counters[NETWORK_COUNTERS.index("roce_retries")] = "3"
    values = traffic(machine, packets=",".join(counters))
    assert {key: n for key, n in values.items() if "roce" in key[0]} == {
        ("xpu_npu_roce_events_total", "retry"): 3
    }
    assert not [key for key in values if key[0] == "xpu_npu_network_packets_total"]


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_measurement_that_hangs_holds_no_sample(machine: Machine, symbol: str) -> None:
    machine.stub.play("card_list 0", *one(0, **TRAFFIC), f"call.{symbol}.sleep_ms 60000")
    with machine.session() as child:
        child.discover()
        for _ in range(3):
            values = of(child.sample()[0])
            assert values["xpu_device_power_watts",] == 101.8
            assert not [key for key in values if "roce" in key[0]]


def test_measurements_are_far_apart(machine: Machine) -> None:
    machine.stub.play("card_list 0", *one(0, **TRAFFIC))
    with machine.session() as child:
        child.discover()
        wait_for(child, "xpu_npu_roce_events_total")
        for _ in range(5):
            child.sample()
        assert [machine.stub.counts()[symbol] for symbol in SYMBOLS] == [1] * len(SYMBOLS)
