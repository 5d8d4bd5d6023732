"""Compile a described library: the engine once a run, each variant of the library once."""

from __future__ import annotations

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
    """Return where this run builds."""
    return Path(tempfile.mkdtemp(prefix="stubs-"))


@functools.cache
def build(name: str, *, without: tuple[str, ...] = (), defines: tuple[str, ...] = ()) -> Path:
    """Return the folder that holds the library under its own name; skip without a compiler.

    `without` names symbols to leave out; `defines` are passed as `-D`.
    """
    library = described(name)
    objects = [*_engine(), *_objects(name, (*(f"NO_{symbol}" for symbol in without), *defines))]
    target = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder())) / library.soname
    _cc(
        [
            "-shared",
            f"-Wl,-soname,{library.soname}",
            "-o",
            str(target),
            *objects,
            "-lpthread",
            "-ldl",
        ]
    )
    return target.parent


@functools.cache
def _engine() -> tuple[str, ...]:
    return tuple(_compile(path, ()) for path in sorted((HERE / "engine").glob("*.c")))


@functools.cache
def _objects(name: str, defines: tuple[str, ...]) -> tuple[str, ...]:
    library = described(name)
    generated = Path(tempfile.mkdtemp(prefix=f"{name}-c-", dir=folder()))
    (generated / "records.h").write_text(header(library), encoding="utf-8")
    (generated / f"{name}.c").write_text(source(library), encoding="utf-8")
    flags = (f"-I{generated}", f"-I{HERE / name}", *(f"-D{define}" for define in defines))
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
    done = subprocess.run(
        [compiler, *FLAGS, *QUIET, *arguments], check=False, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
