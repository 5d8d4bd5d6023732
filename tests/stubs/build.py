"""Compile a described library once a run; its variants are linked from the same objects."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from tests.stubs.describe import Library
from tests.stubs.generate import header, source

HERE = Path(__file__).parent
NEWEST = 99999  # a driver branch that has every symbol
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror")
QUIET = ("-Wno-unused-parameter", "-Wno-unused-function", "-Wno-override-init")


@functools.cache
def described(name: str) -> Library:
    """Return `LIBRARY` of `tests/stubs/<name>/library.py`."""
    library = import_module(f"tests.stubs.{name}.library").LIBRARY
    assert isinstance(library, Library)
    return library


@functools.cache
def folder() -> Path:
    """Return where this run builds; it goes with the run."""
    created = tempfile.TemporaryDirectory(prefix="stubs-")
    atexit.register(created.cleanup)
    return Path(created.name)


@functools.cache
def build(name: str, *, without: tuple[str, ...] = (), driver: int = NEWEST) -> Path:
    """Return the folder that holds the library under its own name; skip without a compiler.

    `without` names symbols to leave out, and so does a `driver` branch those that are newer: they
    are linked so that no loader finds them.
    """
    library = described(name)
    path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder()))
    absent = {*without, *(s.name for s in library.symbols if s.since > driver)}
    (path / "level.c").write_text(f"const int stub_driver = {driver};\n", encoding="utf-8")
    flags = ["-shared", f"-Wl,-soname,{library.soname}"]
    if absent:
        hidden = path / "absent.map"
        hidden.write_text(f"{{ local: {' '.join(f'{s};' for s in absent)} }};\n", encoding="utf-8")
        flags.append(f"-Wl,--version-script={hidden}")
    sources = [str(path / "level.c"), *_engine(), *_objects(name)]
    _cc([*flags, "-o", str(path / library.soname), *sources, "-lpthread", "-ldl"])
    return path


@functools.cache
def _engine() -> tuple[str, ...]:
    return tuple(_compile(path, ()) for path in sorted((HERE / "engine").glob("*.c")))


@functools.cache
def _objects(name: str) -> tuple[str, ...]:
    library = described(name)
    generated = Path(tempfile.mkdtemp(prefix=f"{name}-c-", dir=folder()))
    (generated / "records.h").write_text(header(library), encoding="utf-8")
    (generated / f"{name}.c").write_text(source(library), encoding="utf-8")
    flags = (f"-I{generated}", f"-I{HERE / name}")
    sources = [generated / f"{name}.c", *(HERE / name / extra for extra in library.sources)]
    return tuple(_compile(path, flags) for path in sources)


def _compile(path: Path, flags: Sequence[str]) -> str:
    target = Path(tempfile.mkdtemp(dir=folder())) / f"{path.stem}.o"
    _cc(["-c", f"-I{HERE / 'engine'}", *flags, "-o", str(target), str(path)])
    return str(target)


def _cc(arguments: Sequence[str]) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the stub libraries cannot be built")
    outcome = subprocess.run(
        [compiler, *FLAGS, *QUIET, *arguments], check=False, capture_output=True, text=True
    )
    assert not outcome.returncode, outcome.stderr
