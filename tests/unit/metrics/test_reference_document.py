"""docs/metrics.md has every family, and what people rely on does not vanish from it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from agent.metrics.families import FAMILIES, PROCESS_FAMILIES, STABLE, ExportedFamily


def load_tool() -> ModuleType:
    path = Path(__file__).parents[3] / ".ci" / "write_metrics_reference.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()

OLD = ExportedFamily(
    name="xpu_x", type="gauge", help="X.", labels=("node", "pod"), stability="stable"
)
DOCUMENT: str = tool.table([OLD])


def changed(**changes: object) -> list[ExportedFamily]:
    return [replace(OLD, **changes)]


@pytest.mark.parametrize(
    ("families", "loss"),
    [
        ([], "has gone"),
        (changed(name="xpu_y"), "has gone"),
        (changed(type="counter"), "was a gauge"),
        (changed(labels=("node",)), "lost the labels pod"),
        (changed(stability="beta"), "no longer stable"),
    ],
)
def test_a_stable_family_that_changed_is_a_broken_promise(
    families: list[ExportedFamily], loss: str
) -> None:
    (line,) = tool.find_broken_promises(DOCUMENT, families)
    assert loss in line


def test_a_stable_family_may_get_labels_and_another_help() -> None:
    families = changed(labels=("node", "pod", "uid"), help="Y.")
    assert tool.find_broken_promises(DOCUMENT, families) == []


def test_families_that_are_not_stable_may_go() -> None:
    document = DOCUMENT.replace("| stable |", "| beta |")
    assert tool.find_broken_promises(document, []) == []


def test_every_name_of_the_stable_list_is_a_family() -> None:
    assert {family.name for family in (*FAMILIES, *PROCESS_FAMILIES)} >= STABLE
