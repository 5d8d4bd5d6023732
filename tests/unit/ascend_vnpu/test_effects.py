from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.vendors.ascend.vnpu.ownership import VnpuOwnershipFile
from tests.patience import PATIENCE_S
from tests.stubs.child import ROOT
from tests.unit.ascend.conftest import Machine

KEY = "0000:c1:00.0"
CREATE = ["create", KEY, "vir05_1c_16g", "pod-1"]
Answer = dict[str, object]


def do(machine: Machine, *steps: object, keeps_state: bool = True) -> list[Answer]:
    """Do the steps in one process, as a worker would."""
    settings = {"library_path": str(machine.stub.path)}
    if keeps_state:
        settings["state_dir"] = str(machine.folder / "state")
    arguments = [str(machine.host), json.dumps(settings), *map(json.dumps, steps)]
    result = subprocess.run(
        [sys.executable, "-m", "tests.unit.ascend_vnpu.steps", *arguments],
        cwd=ROOT,
        env={**os.environ, **machine.stub.environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def there(machine: Machine) -> list[int]:
    """Return the numbers of the vNPUs that the driver lists now."""
    with machine.session() as child:
        devices = child.discover().devices
    return [p.instance for d in devices for p in d.partitions if p.instance is not None]


def test_a_piece_is_made_read_back_and_listed(b3: Machine) -> None:
    (answer,) = do(b3, CREATE)
    assert answer == {"instance": 100, "memory": 16 << 30, "cores": 5}
    with b3.session() as child:
        device = child.discover().devices[0]
    (piece,) = device.partitions
    assert (piece.instance, piece.profile) == (100, "vir05_1c_16g")
    assert dict(device.resources)["koordinator.sh/gpu-memory"] == "64Gi"  # totals stay


@pytest.mark.parametrize(
    "line",
    [pytest.param("template.vir05_1c_16g 5:32768", id="E50"), "template.vir05_1c_16g 6:16384"],
)
def test_a_vnpu_that_differs_from_the_request_is_destroyed(b3: Machine, line: str) -> None:
    b3.stub.add(line)
    (refused,) = do(b3, CREATE)
    assert refused["error"] == "VnpuRefused"
    assert "200 %" in str(refused["message"]) or "6" in str(refused["message"])
    assert there(b3) == []


def remaining_vdevs(machine: Machine) -> set[str]:
    """Return the vNPUs in the stub's state."""
    entries: dict[str, str] = {}
    for line in machine.stub.state():
        path, _, value = line.partition(" ")
        entries[path] = value
    return {path for path, value in entries.items() if path.startswith("vdev.") and value}


@pytest.mark.parametrize("lie", ["vdev_next 99", "vdev_told 99", "vdev_told 4294967295"])
def test_what_was_made_under_an_id_that_cannot_be_is_not_left(b3: Machine, lie: str) -> None:
    b3.stub.add(lie)
    (refused,) = do(b3, CREATE)
    assert refused["error"] == "BadVdevId"
    assert remaining_vdevs(b3) == set()
    b3.stub.add("vdev_next 100", "vdev_told 100")
    (answer,) = do(b3, CREATE)
    assert answer.get("instance") == 100, answer


def test_one_that_cannot_be_destroyed_at_once_is_destroyed_with_its_pod(b3: Machine) -> None:
    before = b3.stub.scenario.read_text().splitlines()
    b3.stub.add("vdev_told 99", "call.dcmi_set_destroy_vdevice.ret -8020")
    (refused,) = do(b3, CREATE)
    assert refused["error"] == "BadVdevId"
    assert len(remaining_vdevs(b3)) == 1
    b3.stub.play(*before)
    (answer,) = do(b3, ["reconcile", []])
    assert answer["failed"] == 0
    assert remaining_vdevs(b3) == set()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (["create", KEY, "vir99", "p"], "no template"),
        (["create", "0000:00:00.0", "vir05_1c_16g", "p"], "no chip"),
    ],
)
def test_what_makes_no_sense_is_refused(b3: Machine, step: list[object], message: str) -> None:
    (refused,) = do(b3, step)
    assert refused["error"] == "VnpuRefused"
    assert message in str(refused["message"])


def test_a_pod_has_one_piece_of_a_chip_however_often_it_is_wished_for(b3: Machine) -> None:
    first, second = do(b3, CREATE, CREATE)
    (third,) = do(b3, CREATE)
    assert first == second == third
    assert there(b3) == [100]


def test_a_piece_is_listed_with_the_pod_it_was_made_for(b3: Machine) -> None:
    b3.stub.add("vdev.0.0.104 vir05_1c_16g:5:16384")  # somebody else's
    do(b3, CREATE)
    with b3.session(state_dir=str(b3.folder / "state")) as child:
        owners = {p.instance: p.owner for p in child.discover().devices[0].partitions}
    assert owners == {100: "pod-1", 104: ""}


def test_a_full_chip_is_not_cut_further(b3: Machine) -> None:
    answers = do(b3, *([*CREATE[:3], f"pod-{n}"] for n in range(5)))
    assert [a.get("instance") for a in answers[:4]] == [100, 101, 102, 103]
    assert "0 are free" in str(answers[4]["message"])


def test_a_busy_driver_is_called_again(b3: Machine) -> None:
    b3.stub.add("call.dcmi_create_vdevice.ret -8020 x2")
    (answer,) = do(b3, CREATE)
    assert answer.get("instance") == 100, answer
    assert b3.stub.counts()["dcmi_create_vdevice"] == 3


@pytest.mark.parametrize("code", [-8020, -8013, -8005])
def test_a_driver_that_refuses_leaves_nothing_behind(b3: Machine, code: int) -> None:
    b3.stub.add(f"call.dcmi_create_vdevice.ret {code}")
    (refused, after) = do(b3, CREATE, ["reconcile", []])
    assert "error" in refused
    assert after == {"destroyed": [], "lost": [], "failed": 0}


def test_a_second_piece_is_not_cut_while_the_chip_does_not_describe_the_first(b3: Machine) -> None:
    do(b3, CREATE)
    before = b3.stub.state()
    b3.stub.add("call.dcmi_get_device_info.ret -8005")
    (refused,) = do(b3, CREATE)
    assert "does not describe the vNPU of this pod now" in str(refused["message"])
    assert b3.stub.state() == before


def test_only_orphans_of_the_agent_are_destroyed(b3: Machine) -> None:
    b3.stub.add("vdev.0.0.104 vir05_1c_16g:5:16384")  # somebody else's
    do(b3, CREATE, [*CREATE[:3], "pod-2"])
    assert there(b3) == [100, 101, 104]
    (unknown,) = do(b3, ["reconcile", None])
    assert unknown == {"destroyed": [], "lost": [], "failed": 0}
    (answer,) = do(b3, ["reconcile", ["pod-2"]])
    assert answer["destroyed"] == ["vNPU 100 of pod pod-1"]
    assert there(b3) == [101, 104]


def test_nothing_is_made_that_could_not_be_found_again(b3: Machine) -> None:
    (refused,) = do(b3, CREATE, keeps_state=False)
    assert refused["error"] == "OwnershipNotWritten"
    assert there(b3) == []


def test_a_vnpu_made_just_before_the_worker_was_ended_is_the_agents(b3: Machine) -> None:
    b3.stub.add("call.dcmi_get_device_info.abort 0")
    do(b3, CREATE)
    file = b3.folder / "state/ascend-vnpus.json"
    (entry,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**entry, "vdev": None, "before": []}]))
    (answer,) = do(b3, ["reconcile", []])
    assert answer["destroyed"] == ["vNPU 100 of pod pod-1"]
    assert there(b3) == []


def test_a_vnpu_of_one_pod_is_not_what_was_being_made_for_another(b3: Machine) -> None:
    do(b3, CREATE)
    file = b3.folder / "state/ascend-vnpus.json"
    (entry,) = json.loads(file.read_text())
    interrupted = {**entry, "pod": "pod-2", "vdev": None, "before": []}
    file.write_text(json.dumps([entry, interrupted]))
    do(b3, ["reconcile", ["pod-1", "pod-2"]])
    assert json.loads(file.read_text()) == [entry]
    (answer,) = do(b3, ["reconcile", ["pod-1"]])
    assert answer["destroyed"] == []
    assert there(b3) == [100]


def test_nothing_is_made_on_a_chip_that_does_not_list_its_vnpus(b3: Machine) -> None:
    do(b3, CREATE)
    b3.stub.add("call.dcmi_get_device_info.ret -8005")
    (refused,) = do(b3, [*CREATE[:3], "pod-2"])
    assert "does not list its vNPUs" in str(refused["message"])
    assert b3.stub.counts()["dcmi_create_vdevice"] == 1  # that of the first pod


def test_the_devices_are_read_again_when_a_piece_got_its_owner_back(b3: Machine) -> None:
    do(b3, CREATE)
    file = b3.folder / "state/ascend-vnpus.json"
    (entry,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**entry, "vdev": None, "before": []}]))
    answers = do(b3, ["changed", ["pod-1"]], ["changed", ["pod-1"]])
    assert [answer["changed"] for answer in answers] == [True, False]


def test_a_reset_that_removed_vnpus_is_reported(b3: Machine) -> None:
    do(b3, CREATE)
    (b3.folder / "scenario.state").unlink()
    (answer, again) = do(b3, ["reconcile", ["pod-1"]], ["reconcile", []])
    assert answer["lost"] == ["pod-1"]
    assert again == {"destroyed": [], "lost": [], "failed": 0}


def test_a_number_that_another_vnpu_took_is_not_the_agents_any_more(b3: Machine) -> None:
    do(b3, CREATE)
    (b3.folder / "scenario.state").unlink()
    b3.stub.add("vdev.0.0.100 vir10_3c_32g:10:32768")
    (answer,) = do(b3, ["reconcile", []])
    assert (answer["destroyed"], answer["lost"]) == ([], ["pod-1"])
    assert there(b3) == [100]


def test_a_chip_that_does_not_answer_loses_nothing(b3: Machine) -> None:
    do(b3, CREATE)
    b3.stub.add("call.dcmi_get_device_info.ret -8010")
    (answer,) = do(b3, ["reconcile", ["pod-1"]])
    assert answer == {"destroyed": [], "lost": [], "failed": 0}


def test_a_piece_that_cannot_be_described_loses_no_other(b3: Machine) -> None:
    do(b3, CREATE)
    b3.stub.add("vdev.0.0.104 odd")  # the driver refuses to describe this one, for good
    (answer, again) = do(b3, ["reconcile", ["pod-1"]], ["reconcile", []])
    assert answer == {"destroyed": [], "lost": [], "failed": 0}
    assert again["destroyed"] == ["vNPU 100 of pod pod-1"]


@pytest.mark.parametrize("code", [-8001, -8013, -8255])
def test_a_driver_that_cannot_list_pieces_loses_none(b3: Machine, code: int) -> None:
    do(b3, CREATE)
    b3.stub.add(f"call.dcmi_get_device_info.ret {code}")
    (answer,) = do(b3, ["reconcile", ["pod-1"]])
    assert answer == {"destroyed": [], "lost": [], "failed": 0}
    b3.stub.add("call.dcmi_get_device_info.ret")
    (answer,) = do(b3, ["reconcile", []])
    assert answer["destroyed"] == ["vNPU 100 of pod pod-1"]


def test_during_a_firmware_upgrade_nothing_is_destroyed(b3: Machine) -> None:
    do(b3, CREATE)
    b3.stub.add("call.dcmi_get_device_health.0.0.ret -8017")
    (answer,) = do(b3, ["reconcile", []])
    assert answer == {"destroyed": [], "lost": [], "failed": 0}
    b3.stub.add("call.dcmi_get_device_health.0.0.ret")
    assert there(b3) == [100]


def test_without_a_boot_id_no_number_is_the_agents_after_a_restart(tmp_path: Path) -> None:
    VnpuOwnershipFile(str(tmp_path), "").record_intent("die", "vir02", "pod", ())
    assert VnpuOwnershipFile(str(tmp_path), "").entries == ()


def test_a_failed_destruction_is_retried_and_reported(b3: Machine) -> None:
    do(b3, CREATE)
    b3.stub.add("call.dcmi_set_destroy_vdevice.ret -8005 x1")
    (answer,) = do(b3, ["reconcile", []])
    assert answer["destroyed"] == ["vNPU 100 of pod pod-1"]
    assert b3.stub.counts()["dcmi_set_destroy_vdevice"] == 2


def test_a_vnpu_that_cannot_be_destroyed_is_reported_and_stays_the_agents(b3: Machine) -> None:
    do(b3, CREATE)
    b3.stub.add("call.dcmi_set_destroy_vdevice.ret -8005 x3")
    (answer, after) = do(b3, ["reconcile", []], ["reconcile", []])
    assert (answer["destroyed"], answer["failed"]) == ([], 1)
    assert after["destroyed"] == ["vNPU 100 of pod pod-1"]


def test_the_devices_are_read_again_after_a_vnpu_was_destroyed(b3: Machine) -> None:
    do(b3, CREATE)
    answers = do(b3, ["changed", ["pod-1"]], ["changed", []], ["changed", []])
    assert [answer["changed"] for answer in answers] == [False, True, False]
