"""A vendor is removed by deleting its folder and its line: the rest works without it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plugins.vendors import BUILTIN
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
HOSTS = {
    "nvidia": "qemu-4numa-8xh100",
    "ascend": "atlas-910b3x8",
    "cambricon": "mlu370-x4-8",
}
IMPORT_ALL = """
import pkgutil, sys, agent, plugins
assert agent.__file__.startswith(sys.argv[1]), agent.__file__
for package in (agent, plugins):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
"""
# modules with a word of another meaning that is also a vendor's name
MODULES_WITH_VENDOR_NAMES = {
    "agent/metrics/device_series.py",  # the label `rdma` of a pair of devices
    "agent/metrics/families.py",  # the same label
    "agent/snapshot/device.py",  # the type `rdma` of the Device object
}


@pytest.fixture(params=[name for name, _ in BUILTIN])
def removed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Return a vendor's name, and a copy of the tree without its folder and its line."""
    name: str = request.param
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for package in ("agent", "plugins"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    shutil.rmtree(tmp_path / "plugins/vendors" / name)
    table = tmp_path / "plugins/vendors/__init__.py"
    lines = table.read_text().splitlines(keepends=True)
    remaining = [line for line in lines if f"plugins.vendors.{name}." not in line]
    assert len(remaining) == len(lines) - 1
    table.write_text("".join(remaining))
    return name, tmp_path


def run_in(tree: Path, *command: str) -> str:
    """Run a command in the copy, whose packages come before the installed ones."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    outcome = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout[-2000:] + outcome.stderr[-2000:]
    return outcome.stdout


def test_every_module_and_the_contracts_do_without_the_vendor(removed: tuple[str, Path]) -> None:
    _, tree = removed
    run_in(tree, sys.executable, "-c", IMPORT_ALL, str(tree))
    run_in(tree, str(Path(sys.executable).with_name("lint-imports")), "--no-cache")


def test_the_agent_publishes_the_devices_of_other_vendors(removed: tuple[str, Path]) -> None:
    name, tree = removed
    python = (sys.executable, "-m", "agent")
    assert run_in(tree, *python, "config", "reference")
    for vendor, host in HOSTS.items():
        if vendor == name:
            continue
        recording = ROOT / "fixtures/hosts" / host
        out = tree / f"out-{vendor}"
        arguments = ("run", "--standalone", "--once", "--host", str(recording), "--out", str(out))
        run_in(tree, *python, *arguments)
        devices = yaml.safe_load((out / "device.yaml").read_text())["spec"]["devices"]
        assert len([device for device in devices if device["type"] != "rdma"]) >= 8


def test_no_other_module_of_the_agent_names_a_vendor() -> None:
    names = {name for name, _ in BUILTIN}
    naming = set()
    for path in sorted((ROOT / "agent").rglob("*.py")):
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if names & strings:
            naming.add(path.relative_to(ROOT).as_posix())
    allowed = {path for path in naming if path.startswith("agent/wire_formats/")}
    assert naming - allowed == MODULES_WITH_VENDOR_NAMES
