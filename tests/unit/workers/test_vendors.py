from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import BadConfig
from agent.workers import load
from plugins.vendors import BUILTIN
from plugins.vendors.template.vendor import TemplateVendor
from tests.patience import PATIENCE_S

TEMPLATE = "plugins.vendors.template.vendor:TemplateVendor"


def _install(monkeypatch: pytest.MonkeyPatch, folder: Path, *points: tuple[str, str]) -> None:
    """Install a package for each entry point, as pip leaves it."""
    for number, (name, value) in enumerate(points):
        info = folder / f"package{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: package{number}\nVersion: 1\n"
        )
        table = f"[{load.ENTRY_POINT_GROUP}]\n{name} = {value}\n"
        (info / "entry_points.txt").write_text(table)
    monkeypatch.syspath_prepend(str(folder))


def test_shipped_vendors_are_there_under_their_names() -> None:
    loaded = load.load_vendors()
    assert {name for name, _ in BUILTIN} <= loaded.keys()
    assert all(vendor.description.name == name for name, vendor in loaded.items())
    assert "template" not in loaded


def test_an_installed_vendor_is_there_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _install(monkeypatch, tmp_path, ("template", TEMPLATE))
    assert isinstance(load.load_vendors()["template"], TemplateVendor)
    assert isinstance(load.load_vendor("template"), TemplateVendor)


@pytest.mark.parametrize(
    ("points", "match"),
    [
        ([("fake", TEMPLATE)], "two device vendors are called 'fake'"),
        ([("template", TEMPLATE)] * 2, "two device vendors are called 'template'"),
        ([("other", TEMPLATE)], "calls itself 'template'"),
        ([("gone", "no_such_module:Vendor")], "no_such_module"),
        ([("gone", "plugins.vendors.template.vendor:Nothing")], "Nothing"),
    ],
)
def test_a_clash_or_a_broken_package_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, points: list[tuple[str, str]], match: str
) -> None:
    _install(monkeypatch, tmp_path, *points)
    with pytest.raises(BadConfig, match=match):
        load.load_vendors()


def test_an_unknown_vendor_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _install(monkeypatch, tmp_path)
    with pytest.raises(BadConfig, match="0 device vendors are called 'nobody'"):
        load.load_vendor("nobody")


def _modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return set(outcome.stdout.split())


def test_the_agent_loads_no_vendor_library() -> None:
    loaded = _modules_after("from agent.workers.load import load_vendors\nload_vendors()")
    assert not loaded & {"pynvml", "numpy"}


def test_a_worker_loads_little() -> None:
    loaded = _modules_after("import agent.workers.worker")
    assert not loaded & {"asyncio", "aiohttp", "grpc", "google.protobuf", "psutil", "pynvml"}
    assert not any(name.startswith("plugins.vendors.") for name in loaded)
