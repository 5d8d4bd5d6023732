"""Links and optical modules, as the driver's own tool tells them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.clock import ManualClock
from plugins.shared.tool import ToolFailed, ToolTimedOut
from plugins.vendors.ascend.library.hccn_tool import PLACE, LinkWatch, NetworkLink, read_link
from plugins.vendors.ascend.metrics import FAMILIES
from tests.stubs.dcmi.machines import b3 as one
from tests.unit.ascend.conftest import Machine
from tests.unit.ascend.test_readings import wait_for

OPTICAL = """optical info:
present              : present
temperature          : 45 C
high power enable reg: enabled
vendor name          : HUAWEI
vendor serial number : Tx Power0 : 9 mW
Vcc                  : 3245.10 mV
Tx Power0            : 0.9095 mW
Rx Power0            : 0.7933 mW
Tx Power1            : 0.9162 mW
Rx Power1            : 0.8585 mW
Tx Power2            : NA
Rx Power2            : NA
Tx Power3            : NA
Rx Power3            : NA
Vcc High Thres       : 3630.00 mV
Temp High Thres      : 75 C
TxPower High Thres   : 3.5481 mW
"""
ABSENT = """optical info:
present              : not present
temperature          : NA
Vcc                  : not supported
"""
UPS = """[devid 0]current time        : Tue Oct 28 21:46:46 2025
[devid 0]link up count       : 2
[devid 0]link down count     : 1
[devid 0]link change records :
[devid 0]    Sun Oct  5 10:13:51 2025    LINK UP
"""
ANSWERS = {
    "-link": "link status: UP\n",
    "-speed": "Speed: 200000 Mb/s\n",
    "-link_stat": UPS,
    "-optical": OPTICAL,
}


def read(**answers: str) -> NetworkLink:
    texts = {**ANSWERS, **{f"-{name}": text for name, text in answers.items()}}
    return read_link(texts.__getitem__, 7.0)


def test_all_values_have_base_units() -> None:
    link = read()
    assert (link.is_up, link.bytes_per_second, link.link_ups) == (True, 25e9, 2)
    assert (link.has_module, link.module_celsius) == (True, 45)
    assert link.module_volts == pytest.approx(3.2451)
    assert link.lane_watts == {
        ("tx", 0): pytest.approx(0.9095e-3),
        ("rx", 0): pytest.approx(0.7933e-3),
        ("tx", 1): pytest.approx(0.9162e-3),
        ("rx", 1): pytest.approx(0.8585e-3),
    }


def test_without_a_module_its_values_are_absent_and_not_zero() -> None:
    link = read(optical=ABSENT, link="link status: DOWN\n", speed="Speed: Unknown!\n")
    assert (link.has_module, link.module_celsius, link.module_volts) == (False, None, None)
    assert (link.lane_watts, link.is_up, link.bytes_per_second) == ({}, False, None)


@pytest.mark.parametrize("text", ["", "\0", "link status: ?", "link status: UP DOWN", "UP", "Ä"])
def test_what_the_tool_does_not_print_is_unknown(text: str) -> None:
    link = read(link=text, speed=text, link_stat=text, optical=text)
    assert link == NetworkLink(at_s=7.0)


@pytest.mark.parametrize("value", ["4294967295", "nan", "1e9", "--3", "0x10", "45", "45 F"])
def test_figures_in_another_form_are_unknown(value: str) -> None:
    assert read(optical=f"temperature : {value} C C\n").module_celsius is None


def test_a_query_that_is_refused_costs_its_own_values_only() -> None:
    def run(option: str) -> str:
        if option in ("-speed", "-optical"):
            raise ToolFailed("it ended with 1")
        return ANSWERS[option]

    link = read_link(run, 0.0)
    assert (link.is_up, link.bytes_per_second, link.link_ups, link.has_module) == (
        *(True, None, 2),
        None,
    )


def test_after_a_query_that_hangs_no_other_is_made_about_that_chip() -> None:
    requests: list[str] = []

    def run(option: str) -> str:
        requests.append(option)
        if option == "-speed":
            raise ToolTimedOut("no answer")
        return ANSWERS[option]

    assert read_link(run, 0.0).is_up
    assert requests == ["-link", "-speed"]


def tool(root: Path, script: str) -> Path:
    path = root / PLACE.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


class Runs:
    """Answers for chips, and which were asked."""

    def __init__(self) -> None:
        self.arguments: list[tuple[str, ...]] = []

    def __call__(self, path: str, arguments: Sequence[str], timeout_s: float) -> str:
        assert path.endswith(PLACE)
        assert 0 < timeout_s < 10
        self.arguments.append(tuple(arguments))
        return ANSWERS[arguments[2]]


def test_each_chip_is_queried_by_its_number_and_old_answers_are_dropped(tmp_path: Path) -> None:
    tool(tmp_path, "exit 0")
    clock, runs = ManualClock(), Runs()
    watch = LinkWatch(str(tmp_path), 60.0, clock, runs)
    watch._numbers = {"a": 4, "b": 6}  # without its thread
    watch.read_round()
    assert runs.arguments[::4] == [("-i", "4", "-link", "-g"), ("-i", "6", "-link", "-g")]
    assert watch.link("a") is not None
    assert watch.link("c") is None
    clock.advance(300.0)
    assert watch.link("a") is None


@pytest.mark.parametrize("mode", [0o777, 0o644])
def test_a_tool_that_others_may_change_or_nobody_may_run_is_not_run(
    tmp_path: Path, mode: int
) -> None:
    tool(tmp_path, "exit 0").chmod(mode)
    runs = Runs()
    watch = LinkWatch(str(tmp_path), 60.0, ManualClock(), runs)
    watch._numbers = {"a": 0}
    watch.read_round()
    assert (runs.arguments, watch.link("a")) == ([], None)


def test_with_an_interval_of_zero_there_is_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    watch = LinkWatch(str(tmp_path), 0.0, ManualClock(), Runs())
    watch.watch({"a": 0})
    assert threading.active_count() == before


SCRIPT = f"""
case $3 in
-link) echo 'link status: UP';;
-speed) echo "Speed: ${{2}}00000 Mb/s";;
-link_stat) cat <<'END'
{UPS}END
;;
-optical) cat <<'END'
{OPTICAL}END
;;
esac
"""


def test_the_worker_exports_the_tools_values_of_each_chip(b3: Machine, tmp_path: Path) -> None:
    root = tmp_path / "driver"
    tool(root, SCRIPT)
    b3.stub.play("card_list 0", *one(0))
    with b3.session(driver_root=str(root)) as child:
        child.discover()
        values = wait_for(child, "xpu_npu_optical_power_watts")
    declared = {family.name for family in FAMILIES}
    assert {key[0] for key in values} <= declared
    assert values["xpu_npu_network_link_up",] == 1
    assert values["xpu_npu_network_speed_bytes_per_second",] == 0  # of davinci0
    assert values["xpu_npu_network_link_ups_total",] == 2
    assert values["xpu_npu_optical_present",] == 1
    assert values["xpu_npu_optical_temperature_celsius",] == 45
    assert values["xpu_npu_optical_power_watts", "rx", "1"] == pytest.approx(0.8585e-3)
    assert ("xpu_npu_optical_power_watts", "rx", "2") not in values
