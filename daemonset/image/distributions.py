"""The layers of distributions: those of the lock file with their hashes, and the project itself."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from daemonset.image.interpreter import EXECUTABLE
from daemonset.image.tree import AssemblyError, copy_file, sha256, walk, write_file

SOURCES = ("agent", "plugins", "proto", "pyproject.toml", "README.md", "LICENSE")
EARLIEST_TIME_S = "315532800"  # 1980, of all files in the project's wheel
COMMANDS = {"agent": "xpu-agent", "scheduler": "xpu-scheduler"}
# the scheduler calls no device, no kubelet and no container runtime
NOT_OF_THE_SCHEDULER = frozenset(("grpcio", "nvidia-ml-py", "protobuf", "psutil", "pyudev"))
# sources of what is compiled, and types, which no program reads
_SOURCES_OF_BINARIES = frozenset((".c", ".h", ".pxd", ".pxi", ".pyi", ".pyx"))


@dataclass(frozen=True)
class Wheel:
    """A wheel that was installed."""

    name: str
    version: str
    sha256: str


def normalize_name(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install_locked(lock: Path, target: Path) -> tuple[Wheel, ...]:
    """Install the wheels of a lock file, each with one of its hashes; nothing is built."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        _run_pip(
            *("install", "--require-hashes", "--no-deps", "--only-binary", ":all:"),
            *("--no-compile", "--target", str(target), "--report", str(report)),
            *("--requirement", str(lock)),
        )
        installed = json.loads(report.read_text())["install"]
    _remove_traces(target)
    return tuple(sorted(map(_wheel, installed), key=lambda wheel: wheel.name))


def copy_selected(source: Path, target: Path, left_out: Collection[str]) -> None:
    """Copy all distributions of a folder but some, with their compiled modules."""
    for record in sorted(source.glob("*.dist-info/RECORD")):
        if normalize_name(record.parent.name.split("-")[0]) in left_out:
            continue
        for line in record.read_text(encoding="utf-8").splitlines():
            path = source / _path_of(line)
            copy_file(path, target / path.relative_to(source))
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                copy_file(compiled, target / compiled.relative_to(source))


def install_project(root: Path, target: Path) -> Wheel:
    """Build the project's own wheel from a copy of its sources, and install it."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "source")
        sources.mkdir()
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        for name in SOURCES:
            if (root / name).is_dir():
                shutil.copytree(root / name, sources / name, ignore=ignore)
            else:
                shutil.copyfile(root / name, sources / name)
        _run_pip(
            *("wheel", "--no-deps", "--no-index", "--no-build-isolation"),
            *("--wheel-dir", folder, str(sources)),
        )
        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as archive:  # it has modules and metadata only
            archive.extractall(target)
        name, version = path.name.split("-")[:2]
        wheel = Wheel(normalize_name(name), version, sha256(path))
    _remove_traces(target)
    return wheel


def write_command(root: Path, target: str, entry_point: str) -> None:
    """Write the command of a target; it starts the interpreter in isolated mode."""
    module, _, function = entry_point.partition(":")
    text = (
        f"#!/{EXECUTABLE} -IB\nimport sys\n\nfrom {module} import {function}\n\n"
        f"sys.exit({function}())\n"
    )
    write_file(root / "usr/local/bin" / COMMANDS[target], text)


def _wheel(item: dict[str, dict[str, object]]) -> Wheel:
    metadata, download = item["metadata"], item["download_info"]
    archive = download["archive_info"]
    assert isinstance(archive, dict)
    name, version = str(metadata["name"]), str(metadata["version"])
    return Wheel(normalize_name(name), version, str(archive["hashes"]["sha256"]))


def _remove_traces(target: Path) -> None:
    """Remove pip's commands, what tells when and whence it installed, and what is not used."""
    shutil.rmtree(target / "bin", ignore_errors=True)
    for path in list(walk(target)):
        if path.suffix in _SOURCES_OF_BINARIES:
            path.unlink()
    for name in ("direct_url.json", "REQUESTED", "INSTALLER"):
        for path in target.glob(f"*.dist-info/{name}"):
            path.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines()
        record.write_text("".join(f"{line}\n" for line in sorted(_present(target, lines))))


def _present(target: Path, lines: Iterable[str]) -> Iterable[str]:
    """Return the lines of a RECORD whose files exist."""
    return (line for line in lines if (target / _path_of(line)).is_file())


def _path_of(line: str) -> str:
    """Return the path in a line of a RECORD; one with a comma is quoted."""
    return line.rsplit(",", 2)[0].strip('"')


def _run_pip(*arguments: str) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-input")
    pip = [sys.executable, "-I", "-m", "pip"]
    if importlib.util.find_spec("pip") is None:  # a virtual environment that was made without it
        base = Path(sys.base_prefix, "bin", EXECUTABLE.name)
        pip = [str(base), "-I", "-m", "pip", "--python", sys.executable]
    command = [*pip, arguments[0], *options, *arguments[1:]]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EARLIEST_TIME_S}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise AssemblyError(f"pip {arguments[0]} failed: {result.stderr.strip()[-2000:]}")
