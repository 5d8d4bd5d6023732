from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import HostFileError, ParseError
from plugins.bindings.dcmi.vdev import Vdev
from plugins.slices.vnpu.ledger import Ledger, orphans
from plugins.slices.vnpu.names import parse_device, parse_granted, template_cores
from plugins.slices.vnpu.rules import difference, refuse_if_full
from plugins.slices.vnpu.templates import Template, VnpuRefused, capacity_mb, choose, templates

TOLD_MB = {"910B3": 65536, "310P3": 21527}


@pytest.mark.parametrize(
    ("model", "memory_mb", "name"),
    [
        pytest.param("910B3", 10000, "vir05_1c_16g", id="E39 smallest"),
        pytest.param("910B3", 20000, "vir10_3c_32g", id="E39 next"),
        pytest.param("910B3", 40000, None, id="E39 whole"),
        pytest.param("910B3", 70000, "refused", id="E39 refused"),
        pytest.param("310P3", 3072, "vir01", id="E40 exact"),
        pytest.param("310P3", 12289, None, id="E40 whole"),
        pytest.param("310P3", 24000, None, id="E40 still whole"),
        pytest.param("310P3", 24577, "refused", id="E40 refused"),
        pytest.param("310P3", 6144, "vir02", id="of equal ones the shortest name"),
    ],
)
def test_an_amount_of_memory_needs_the_smallest_piece(
    model: str, memory_mb: int, name: str | None
) -> None:
    if name == "refused":
        with pytest.raises(VnpuRefused, match=str(memory_mb)):
            choose(templates(model), memory_mb, capacity_mb(model, TOLD_MB[model]))
        return
    found = choose(templates(model), memory_mb, capacity_mb(model, TOLD_MB[model]))
    assert (found.name if found else None) == name


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
    found = templates(model, cores)
    assert [template.name for template in found] == names
    assert all(template_cores(template.name) == template.cores for template in found)


@pytest.mark.parametrize(
    ("text", "phys", "template", "ids"),
    [
        pytest.param("0-vir02", (0,), "vir02", 2, id="E41 a piece"),
        pytest.param("0,1", (0, 1), "", None, id="E41 whole chips"),
        pytest.param("7-vir12_3c_32g", (7,), "vir12_3c_32g", 12, id="a long name"),
    ],
)
def test_an_annotation_grants_chips_or_one_piece(
    text: str, phys: tuple[int, ...], template: str, ids: int | None
) -> None:
    found = parse_granted(text)
    assert (found.phys, found.template, found.cores) == (phys, template, ids)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0-vir02-x", id="E41 something behind"),
        pytest.param("101-vir01", id="E41 beyond 100"),
        *("", "0,", "0,0", "-1", "0-vir2", "0-vir02_1x", "0, 1", "1e1", "0-vir02,1-vir02"),
    ],
)
def test_an_annotation_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_granted(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("Ascend310P-2c-100-0_1", ("310P", "2c", 100, 0, 1), id="E42"),
        pytest.param("Ascend310P-2c-100-0", ("310P", "2c", 100, 0, None), id="without a group"),
        pytest.param("Ascend910-5c.1cpu.16g-116-3", ("910", "5c.1cpu.16g", 116, 3, None), id="910"),
        pytest.param(
            "Ascend910-10c.3cpu.16g.ndvpp-1123-15",
            ("910", "10c.3cpu.16g.ndvpp", 1123, 15, None),
            id="every part",
        ),
    ],
)
def test_a_device_id_names_a_piece(text: str, told: tuple[str, str, int, int, int | None]) -> None:
    found = parse_device(text)
    assert (found.family, found.kind, found.vdev, found.phy, found.group) == told


@pytest.mark.parametrize("text", ["", "Ascend910-3", "Ascend310P-2c-99-0", "Ascend310P-2c-1124-0"])
def test_what_names_no_piece_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_device(text)


SMALL = Template(name="vir05_1c_16g", kind="", cores=5, cpus=1, dvpp=None, memory_mb=16384)


@pytest.mark.parametrize(
    ("made", "word"),
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
def test_what_was_cut_is_compared_with_what_was_asked_for(
    made: dict[str, object], word: str
) -> None:
    facts = {"template": SMALL.name, "cores": 5, "cpus": 1, "memory_mb": 16384, **made}
    told = difference(Vdev(id=100, **facts), SMALL)  # type: ignore[arg-type]
    assert word in told
    assert bool(told) == bool(word)


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
    ledger = Ledger(str(tmp_path), "boot-1")
    entry = ledger.intend("die", "vir02", "pod-1", [100])
    assert Ledger(str(tmp_path), "boot-1").entries == (entry,)
    made = ledger.made(entry, 101)
    again = Ledger(str(tmp_path), "boot-1")
    assert again.entries == (made,)
    assert orphans(again.entries, {"pod-1"}) == ()
    assert orphans(again.entries, {"pod-2"}) == (made,)
    assert Ledger(str(tmp_path), "boot-2").entries == ()


def test_without_a_memory_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(HostFileError):
        Ledger(None, "boot").intend("die", "vir02", "pod", [])
    (tmp_path / "file").write_text("")
    with pytest.raises(HostFileError):
        Ledger(str(tmp_path / "file"), "boot").intend("die", "vir02", "pod", [])
