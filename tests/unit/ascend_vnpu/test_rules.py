from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agent import durable
from plugins.vendors.ascend.library.vdev import Vdev
from plugins.vendors.ascend.vnpu.maker import difference, refuse_if_full
from plugins.vendors.ascend.vnpu.ownership import (
    OwnershipNotWritten,
    VnpuOwnershipFile,
    orphaned_vnpus,
)
from plugins.vendors.ascend.vnpu.templates import (
    VnpuRefused,
    VnpuTemplate,
    templates,
)


@pytest.mark.parametrize(
    ("model", "cores", "names"),
    [
        ("910B4-1", None, ["vir05_1c_16g", "vir10_3c_32g"]),
        ("910C", 20, ["vir05_1c_16g", "vir10_3c_32g"]),
        ("910C", 24, ["vir06_1c_16g", "vir12_3c_32g"]),
        ("910C", 25, []),
        ("910B1", None, []),
        ("910A", 32, ["vir02", "vir04", "vir08", "vir16"]),
    ],
)
def test_templates_are_those_of_the_model(model: str, cores: int | None, names: list[str]) -> None:
    model_templates = templates(model, cores)
    assert [template.name for template in model_templates] == names


SMALL = VnpuTemplate(name="vir05_1c_16g", kind="", cores=5, cpus=1, dvpp=None, memory_mb=16384)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"memory_mb": 32768}, "200 %", id="E50"),
        pytest.param({"memory_mb": 15400}, "93.99 %", id="a little too small"),
        pytest.param({"memory_mb": 15565}, "", id="small enough a difference"),
        pytest.param({"cores": 10}, "10", id="other cores"),
        pytest.param({"template": "vir10_3c_32g"}, "vir10_3c_32g", id="another piece"),
        pytest.param({"memory_mb": None}, "None", id="no memory told"),
        pytest.param({}, "", id="as asked for"),
    ],
)
def test_a_created_vnpu_is_compared_with_the_request(changes: dict[str, object], text: str) -> None:
    facts = {"template": SMALL.name, "cores": 5, "cpus": 1, "memory_mb": 16384, **changes}
    message = difference(Vdev(id=100, **facts), SMALL)  # type: ignore[arg-type]
    assert text in message
    assert bool(message) == bool(text)


def test_a_chip_is_cut_while_it_has_cores_and_numbers() -> None:
    there = [
        Vdev(id=100 + i, template=SMALL.name, cores=5, cpus=1, memory_mb=16384) for i in range(4)
    ]
    refuse_if_full(SMALL, there[:3], 20)
    refuse_if_full(SMALL, there, None)
    with pytest.raises(VnpuRefused, match="0 are free"):
        refuse_if_full(SMALL, there, 20)
    with pytest.raises(VnpuRefused, match="32"):
        refuse_if_full(SMALL, there * 8, None)


def test_what_we_made_is_remembered_for_the_boot(tmp_path: Path) -> None:
    ledger = VnpuOwnershipFile(str(tmp_path), "boot-1")
    entry = ledger.record_intent("die", "vir02", "pod-1", [100])
    assert VnpuOwnershipFile(str(tmp_path), "boot-1").entries == (entry,)
    created = ledger.record_created(entry, 101)
    again = VnpuOwnershipFile(str(tmp_path), "boot-1")
    assert again.entries == (created,)
    assert orphaned_vnpus(again.entries, {"pod-1"}) == ()
    assert orphaned_vnpus(again.entries, {"pod-2"}) == (created,)
    assert VnpuOwnershipFile(str(tmp_path), "boot-2").entries == ()


def test_a_number_that_the_driver_gives_again_belongs_to_the_new_vnpu_alone(tmp_path: Path) -> None:
    ledger = VnpuOwnershipFile(str(tmp_path), "boot-1")
    ledger.record_created(ledger.record_intent("die", "vir02", "pod-1", []), 100)
    other = ledger.record_created(ledger.record_intent("die-2", "vir02", "pod-1", []), 100)
    new = ledger.record_created(ledger.record_intent("die", "vir02", "pod-2", []), 100)
    assert VnpuOwnershipFile(str(tmp_path), "boot-1").entries == (other, new)


def test_without_a_memory_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(OwnershipNotWritten, match=r"no node\.state_dir"):
        VnpuOwnershipFile("", "boot").record_intent("die", "vir02", "pod", [])
    (tmp_path / "file").write_text("")
    with pytest.raises(OwnershipNotWritten, match=r"ascend-vnpus\.json: File exists"):
        VnpuOwnershipFile(str(tmp_path / "file"), "boot").record_intent("die", "vir02", "pod", [])


def test_a_disk_that_is_late_is_not_called_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = VnpuOwnershipFile(str(tmp_path), "boot")
    may_write = threading.Event()
    real = durable.replace_file

    def late(path: str, data: bytes, mode: int) -> None:
        may_write.wait()
        real(path, data, mode)

    monkeypatch.setattr(durable, "replace_file", late)
    try:
        with pytest.raises(OwnershipNotWritten) as error:
            ledger.record_intent("die", "vir02", "pod", [])
    finally:
        may_write.set()
    path = tmp_path / "ascend-vnpus.json"
    assert str(error.value) == f"{path}: the file system does not answer"
    assert ledger.entries == ()
