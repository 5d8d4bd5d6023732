from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.errors import BadConfig
from agent.snapshot.device import HealthState
from agent.workers.protocol import ErrorReply
from plugins.shared.library_file import LibraryUnavailable
from plugins.vendors.cambricon.library.cndev import MANDATORY, OPTIONAL, SONAME, locate_cndev
from plugins.vendors.cambricon.settings import CambriconSettings
from tests.stubs.child import real_worker
from tests.unit.cambricon.cards import card, machine, session, stub_of, tree_of
from tests.vendors import section


@pytest.mark.parametrize("symbol", MANDATORY)
def test_without_a_symbol_it_must_have_the_library_is_refused(symbol: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(), without=(symbol,))
    with session(stub, tree_of(tmp_path)) as child:
        inventory = child.discover()
    assert [(p.reason, symbol in p.message) for p in inventory.problems] == [("LibraryUnfit", True)]
    assert {(d.health.state, d.health.reason) for d in inventory.devices} == {
        (HealthState.FAILED, "LibraryUnfit")
    }


@pytest.mark.parametrize("symbol", OPTIONAL)
def test_without_an_optional_symbol_only_its_values_are_absent(symbol: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(), without=(symbol,))
    with session(stub, tree_of(tmp_path)) as child:
        inventory, samples = child.discover(), child.sample()
    assert ("missing-symbols", symbol) in inventory.facts
    assert [d.health.state for d in inventory.devices] == [HealthState.HEALTHY] * 2
    assert [d.memory_bytes for d in inventory.devices] == [23308 << 20] * 2
    assert [s.memory_used_bytes for s in samples] == [0, 0]
    busy = None if symbol == "cndevGetDeviceUtilizationInfo" else 0.0
    assert {s.core_percent for s in samples} == {busy}


def test_a_library_that_refuses_version_6_is_called_with_5(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(), "api 5")
    with session(stub, tree_of(tmp_path)) as child:
        inventory, samples = child.discover(), child.sample()
    assert dict(inventory.facts)["api"] == "5"
    assert [d.health.state for d in inventory.devices] == [HealthState.HEALTHY] * 2
    assert len(samples) == 2


def test_version_6_is_not_tried_again_after_a_refusal(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(), "call.cndevGetDeviceCount.ret 3 x1")
    with session(stub, tree_of(tmp_path)) as child:
        assert dict(child.discover().facts)["api"] == "5"


@pytest.mark.parametrize("code", [1, 12])
def test_a_driver_that_is_not_loaded_leaves_what_sysfs_shows(code: int, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(), f"call.cndevInit.ret {code}")
    with session(stub, tree_of(tmp_path)) as child:
        before = child.discover()
        stub.play(*machine())
        after = child.discover()
    assert [(d.bus_id, d.health.reason) for d in before.devices] == [
        ("0000:1a:00.0", "DriverNotLoaded"),
        ("0000:1b:00.0", "DriverNotLoaded"),
    ]
    assert {d.health.reason for d in after.devices} == {"DeviceHealthy"}


def test_a_driver_that_is_unloaded_and_comes_back_is_initialised_anew(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine())
    with session(stub, tree_of(tmp_path)) as child:
        child.discover()
        stub.add("call.cndevGetDeviceCount.ret 1")
        inventory, silent = child.discover(), child.sample()
        stub.play(*machine())
        back = child.discover()
    assert [(d.minor, d.health.reason) for d in inventory.devices] == [
        (0, "DriverNotLoaded"),
        (1, "DriverNotLoaded"),
    ]
    assert silent == ()
    assert {d.health.reason for d in back.devices} == {"DeviceHealthy"}
    assert stub.counts()["cndevInit"] == 2


def test_the_agents_own_worker_serves_the_cards(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine())
    settings = {"library_path": str(stub.path)}
    with real_worker("cambricon", stub.environment, settings) as child:
        inventory = child.discover()
        assert len(child.sample()) == 2
    assert [d.minor for d in inventory.devices] == [0, 1]


@pytest.mark.parametrize("method", ["discover", "sample"])
def test_a_library_that_was_replaced_needs_a_new_process(method: str, tmp_path: Path) -> None:
    stub, other = stub_of(tmp_path, *machine()), tmp_path / SONAME
    shutil.copy(stub.path, other)
    with session(stub, tree_of(tmp_path), library_path=str(other)) as child:
        child.discover()
        shutil.copy(stub.path, tmp_path / "upgraded")
        (tmp_path / "upgraded").replace(other)
        reply = child.ask(method)
    assert isinstance(reply, ErrorReply)
    assert reply.kind == "LibraryReplaced"


def test_a_list_that_does_not_fit_is_requested_with_more_room(tmp_path: Path) -> None:
    processes = [f"mlu.0.proc.{100 + i} {i}:0:1" for i in range(40)]
    stub = stub_of(tmp_path, *machine(1), *processes)
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        (sample,) = child.sample()
    assert sample.processes is not None
    assert [p.pid for p in sample.processes] == list(range(100, 140))
    assert stub.counts()["cndevGetProcessInfo"] == 2


def test_a_list_that_never_fits_is_given_up(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), "call.cndevGetProcessInfo.ret 9")
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        (sample,) = child.sample()
    assert sample.processes is None
    assert stub.counts()["cndevGetProcessInfo"] == 3


def test_handles_that_a_reset_changed_are_taken_anew(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine())
    with session(stub, tree_of(tmp_path)) as child:
        child.discover()
        stub.add("handles 700", *card(1, power=77))
        samples = child.sample()
    assert [{r.family: r.value for r in s.readings}["xpu_device_power_watts"] for s in samples] == [
        30,
        77,
    ]


def test_a_file_that_is_set_is_the_only_candidate(tmp_path: Path) -> None:
    with pytest.raises(LibraryUnavailable, match="is not there") as caught:
        locate_cndev(CambriconSettings(library_path=str(tmp_path / SONAME)))
    assert caught.value.reason == "LibraryMissing"


def test_a_file_that_others_may_write_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / SONAME
    path.write_bytes(b"")
    path.chmod(0o666)
    with pytest.raises(LibraryUnavailable) as caught:
        locate_cndev(CambriconSettings(library_path=str(path)))
    assert caught.value.reason == "LibraryUntrusted"


def test_folders_are_searched_below_the_driver_root(tmp_path: Path) -> None:
    folder = tmp_path / "usr/local/neuware/lib64"
    folder.mkdir(parents=True)
    (folder / SONAME).write_bytes(b"")
    assert locate_cndev(CambriconSettings(driver_root=str(tmp_path))) == str(folder / SONAME)


@pytest.mark.parametrize("key", ["library_path", "driver_root", "cntopo_file"])
def test_a_relative_path_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(BadConfig, match=f"cambricon.{key}"):
        section(CambriconSettings, {key: "somewhere"}).check()
