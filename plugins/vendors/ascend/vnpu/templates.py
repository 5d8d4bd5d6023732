"""vNPU templates by chip model, and the template that a request needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agent.errors import AgentError

A910 = "910A"  # key for all chips of the first 910 generation


class VnpuRefused(AgentError):
    """A requested vNPU cannot be created; the message says why."""


class VnpuTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a vNPU; `None` for values that the maker does not publish."""

    name: str
    kind: str  # name of the size in the maker's device plug-in
    cores: int
    cpus: int | None
    dvpp: int | None  # percent of the image units
    memory_mb: int


# model: name kind cores AI-CPUs dvpp MB; a dash is not published
_TABLE: dict[str, tuple[str, ...]] = {
    "310P3": (
        "vir01 1c 1 1 12 3072",
        "vir02 2c 2 2 25 6144",
        "vir02_1c 2c.1cpu 2 1 25 6144",
        "vir04 4c 4 4 50 12288",
        "vir04_3c 4c.3cpu 4 3 50 12288",
        "vir04_3c_ndvpp 4c.3cpu.ndvpp 4 3 - 12288",
        "vir04_4c_dvpp 4c.4cpu.dvpp 4 4 100 12288",
    ),
    A910: (
        "vir02 2c 2 - - 2184",
        "vir04 4c 4 - - 4369",
        "vir08 8c 8 - - 8738",
        "vir16 16c 16 - - 17476",
    ),
    "910B2": (
        "vir03_1c_8g 3c.1cpu.8g 3 1 - 8192",
        "vir06_1c_16g 6c.1cpu.16g 6 1 - 16384",
        "vir12_3c_32g 12c.3cpu.32g 12 3 - 32768",
    ),
    "910B3": (
        "vir05_1c_16g 5c.1cpu.16g 5 1 - 16384",
        "vir10_3c_32g 10c.3cpu.32g 10 3 - 32768",
    ),
    "910B4": (
        "vir05_1c_8g 5c.1cpu.8g 5 1 - 8192",
        "vir10_3c_16g 10c.3cpu.16g 10 3 - 16384",
        "vir10_3c_16g_nm 10c.3cpu.16g.ndvpp 10 3 0 16384",
        "vir10_4c_16g_m 10c.4cpu.16g.dvpp 10 4 100 16384",
    ),
    "910C of 24": (
        "vir06_1c_16g 6c.1cpu.16g 6 1 - 16384",
        "vir12_3c_32g 12c.3cpu.32g 12 3 - 32768",
    ),
}
_SAME = {"910B4-1": "910B3", "910C of 20": "910B3"}


def templates(model: str, cores: int | None = None) -> tuple[VnpuTemplate, ...]:
    """Return the templates of a chip; `cores` distinguishes the two kinds of 910C."""
    key = f"{model} of {cores}" if model == "910C" else model
    return tuple(_rows(_SAME.get(key, key)))


def template_of(model: str, cores: int | None, name: str) -> VnpuTemplate:
    """Return a chip's template by name; raises `VnpuRefused` if there is none."""
    template = next(
        (candidate for candidate in templates(model, cores) if candidate.name == name), None
    )
    if template is None:
        raise VnpuRefused(f"a chip of model {model} has no template {name[:40]}")
    return template


def _rows(model: str) -> Iterator[VnpuTemplate]:
    for row in _TABLE.get(model, ()):
        name, kind, cores, cpus, dvpp, memory = row.split()
        yield VnpuTemplate(
            name=name,
            kind=kind,
            cores=int(cores),
            cpus=None if cpus == "-" else int(cpus),
            dvpp=None if dvpp == "-" else int(dvpp),
            memory_mb=int(memory),
        )
