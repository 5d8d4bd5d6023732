from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from agent.errors import BadConfig
from agent.probe import vendors
from plugins.vendors import BUILTIN
from plugins.vendors.template.vendor import TemplateVendor

TEMPLATE = "plugins.vendors.template.vendor:TemplateVendor"


def _install(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, vendors.ENTRY_POINT_GROUP) for name, value in points]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: found)


def test_shipped_vendors_are_there_under_their_names() -> None:
    loaded = vendors.load_vendors()
    assert {name for name, _ in BUILTIN} <= loaded.keys()
    assert all(vendor.name == name for name, vendor in loaded.items())
    assert "template" not in loaded


def test_an_installed_vendor_is_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, ("template", TEMPLATE))
    assert isinstance(vendors.load_vendors()["template"], TemplateVendor)
    assert isinstance(vendors.load_vendor("template"), TemplateVendor)


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
    monkeypatch: pytest.MonkeyPatch, points: list[tuple[str, str]], match: str
) -> None:
    _install(monkeypatch, *points)
    with pytest.raises(BadConfig, match=match):
        vendors.load_vendors()


def test_an_unknown_vendor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch)
    with pytest.raises(BadConfig, match="0 device vendors are called 'nobody'"):
        vendors.load_vendor("nobody")


def _modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_agent_loads_no_vendor_library() -> None:
    loaded = _modules_after("from agent.probe.vendors import load_vendors\nload_vendors()")
    assert not loaded & {"pynvml", "numpy"}


def test_a_worker_loads_little() -> None:
    loaded = _modules_after("import agent.probe.worker")
    assert not loaded & {"asyncio", "aiohttp", "yaml", "psutil", "pynvml", "importlib.metadata"}
    assert not any(name.startswith("plugins.vendors.") for name in loaded)
