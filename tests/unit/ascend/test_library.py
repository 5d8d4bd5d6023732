from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import DeviceGone, NotSupported
from agent.workers.protocol import ErrorReply
from plugins.shared.library_file import LibraryUnavailable
from plugins.vendors.ascend.library import codes
from plugins.vendors.ascend.library.dcmi import MANDATORY, OPTIONAL, locate_dcmi
from plugins.vendors.ascend.settings import AscendSettings
from tests.patience import PATIENCE_S
from tests.stubs.child import ROOT
from tests.stubs.dcmi.library import NEXT
from tests.unit.ascend.conftest import Machine


def write_library(folder: Path, mode: int = 0o755) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    file = folder / "libdcmi.so"
    file.write_bytes(b"")
    file.chmod(0o644)
    return file


def test_the_setting_is_the_only_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_library(tmp_path / "ld")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other.parent))
    configured = write_library(tmp_path / "chosen")
    assert locate_dcmi(AscendSettings(library_path=str(configured))) == str(configured)
    with pytest.raises(LibraryUnavailable) as refused:
        locate_dcmi(AscendSettings(library_path=str(tmp_path / "nowhere/libdcmi.so")))
    assert refused.value.reason == "LibraryMissing"


def test_the_linkers_path_comes_before_the_drivers_folders_below_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'ld'}")
    settings = AscendSettings(driver_root=str(tmp_path / "root"))
    assert locate_dcmi(settings) == "libdcmi.so"
    common = write_library(tmp_path / "root/usr/local/Ascend/driver/lib64/common")
    assert locate_dcmi(settings) == str(common)
    own = write_library(tmp_path / "root/usr/local/dcmi")
    assert locate_dcmi(settings) == str(own)
    first = write_library(tmp_path / "ld")
    assert locate_dcmi(settings) == str(first)


@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_library_that_others_may_change_is_refused(tmp_path: Path, which: str) -> None:
    file = write_library(tmp_path / "open")
    link = tmp_path / "link.so"
    link.symlink_to(file)
    (file if which == "file" else file.parent).chmod(0o777)
    with pytest.raises(LibraryUnavailable) as refused:
        locate_dcmi(AscendSettings(library_path=str(link)))
    assert refused.value.reason == "LibraryUntrusted"


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (-8001, NotSupported, "BadParameter"),
        (-8002, codes.DcmiFault, "PermissionDenied"),
        (-8003, codes.DcmiFault, "OutOfMemory"),
        (-8005, codes.DcmiFault, "DriverError"),
        (-8006, codes.DcmiFault, "DriverTimeout"),
        (-8007, DeviceGone, "DeviceLost"),
        (-8008, DeviceGone, "DeviceLost"),
        (-8010, codes.DcmiFault, "SendFailed"),
        (-8012, codes.DcmiFault, "NotReady"),
        (-8013, NotSupported, "NotInContainer"),
        (-8017, codes.DcmiFault, "FirmwareUpgrade"),
        (-8020, codes.DcmiFault, "Occupied"),
        (-8022, codes.DcmiFault, "FirmwareInconsistent"),
        (-8023, NotSupported, "NotConfigured"),
        (-8255, NotSupported, "NotSupported"),
        (-99998, NotSupported, "SymbolMissing"),
        (-1234, codes.DcmiFault, "DriverError"),
    ],
)
def test_a_return_code_is_one_kind_of_error_and_keeps_its_number(
    code: int, kind: type[Exception], reason: str
) -> None:
    error = codes.error_of("dcmi_x", code)
    assert type(error) is kind
    assert codes.reason_of(code) == reason
    assert str(code) in str(error)


@pytest.mark.parametrize("symbol", MANDATORY)
def test_a_library_without_a_mandatory_symbol_is_refused_and_the_chips_stay_listed(
    b3: Machine, symbol: str
) -> None:
    with b3.session(library_path=str(lacking(b3, symbol))) as child:
        inventory = child.discover()
    assert [problem.reason for problem in inventory.problems] == ["LibraryUnfit"]
    assert symbol in inventory.problems[0].message
    assert len(inventory.devices) == 8
    assert {device.health.reason for device in inventory.devices} == {"LibraryUnfit"}


@pytest.mark.parametrize("symbol", OPTIONAL)
def test_a_symbol_that_is_missing_takes_its_fact_away_and_no_chip(b3: Machine, symbol: str) -> None:
    with b3.session(library_path=str(lacking(b3, symbol))) as child:
        inventory, samples = child.discover(), child.sample()
    assert dict(inventory.facts).get("missing-symbols") == symbol
    assert [d.minor for d in inventory.devices if d.resources] == list(range(8))
    assert all(device.health.is_in_service for device in inventory.devices)
    assert len(samples) == 8


def lacking(machine: Machine, *symbols: str) -> Path:
    """Return a copy of the stub without some symbols, which get other names."""
    data = machine.stub.path.read_bytes()
    for symbol in symbols:
        data = data.replace(f"\0{symbol}\0".encode(), f"\0X{symbol[1:]}\0".encode())
    folder = machine.folder / "lacking"
    folder.mkdir(exist_ok=True)
    path = folder / "libdcmi.so"
    path.write_bytes(data)
    path.chmod(0o644)
    return path


def test_a_driver_that_cannot_be_initialised_leaves_the_chips_of_sysfs(b3: Machine) -> None:
    b3.stub.add("call.dcmi_init.ret -8005")
    with b3.session() as child:
        inventory = child.discover()
        assert inventory.problems[0].reason == "DriverNotLoaded"
        assert {d.health.reason for d in inventory.devices} == {"DriverNotLoaded"}
        assert not any(device.health.is_in_service for device in inventory.devices)
        assert child.sample() == ()
        b3.stub.add("call.dcmi_init.ret")
        assert all(device.health.is_in_service for device in child.discover().devices)


@pytest.mark.parametrize(("code", "reason"), [(0, "UnsupportedGeneration"), (-8005, None)])
def test_the_generation_after_is_known_from_sysfs(
    b3: Machine, code: int, reason: str | None
) -> None:
    b3.stub.driver = NEXT
    b3.stub.add("call.dcmi_init.ret -8005", f"call.dcmiv2_init.ret {code}")
    with b3.session() as child:
        inventory = child.discover()
    assert inventory.problems[0].reason == (reason or "DriverNotLoaded")
    assert len(inventory.devices) == 8
    assert {d.health.is_in_service for d in inventory.devices} == {reason is not None}


def test_a_replaced_library_requires_a_new_process(b3: Machine) -> None:
    copy = lacking(b3)
    with b3.session(library_path=str(copy)) as child:
        child.discover()
        fresh = copy.with_name("new")
        fresh.write_bytes(copy.read_bytes() + b"\0")
        fresh.chmod(0o644)
        fresh.replace(copy)
        for method in ("sample", "discover"):
            reply = child.ask(method)
            assert isinstance(reply, ErrorReply)
            assert reply.kind == "LibraryReplaced"


def test_a_library_that_is_installed_later_is_found_and_reported(b3: Machine) -> None:
    here, later = lacking(b3), b3.folder / "later/libdcmi.so"
    later.parent.mkdir()
    script = f"""
import os
from agent.clock import ManualClock
from agent.recording.host_source import open_host
from plugins.vendors.ascend.session import AscendSession
from plugins.vendors.ascend.settings import AscendSettings
clock = ManualClock(mono_s=0.0)
settings = AscendSettings(library_path={str(later)!r}, sample_interval_s=0.0)
session = AscendSession(open_host({str(b3.host)!r}).files, settings, clock=clock)
assert session.discover().problems[0].reason == "LibraryMissing"
assert session.sample() == () and session.events(0.0) == ()
os.rename({str(here)!r}, {str(later)!r})
clock.advance(31.0)
session.sample()
assert [event.reason for event in session.events(0.0)] == ["DriverCame"]
assert all(device.health.is_in_service for device in session.discover().devices)
"""
    environment = {**os.environ, **b3.stub.environment}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, check=False, timeout=PATIENCE_S
    )
    assert result.returncode == 0


def test_a_driver_of_another_version_requires_a_new_process(b3: Machine) -> None:
    b3.as_folder(["c1"])
    version = b3.host / "usr/local/Ascend/driver/version.info"
    version.parent.mkdir(parents=True)
    version.write_text("Version=24.1.rc1\n")
    with b3.session() as child:
        assert child.discover().driver_version == "24.1.rc1"
        version.write_text("Version=25.0.rc1\n")
        reply = child.ask("discover")
    assert isinstance(reply, ErrorReply)
    assert reply.kind == "LibraryReplaced"
