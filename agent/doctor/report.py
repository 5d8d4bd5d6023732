"""All checks in their order, and what they come to."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Mapping

from agent.doctor import containers, devices, health
from agent.doctor.base import Facts, Finding, Result

CHECKS = (*health.CHECKS, *devices.CHECKS, *containers.CHECKS)
MODE = 0o600  # a bundle tells much of a node


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Return what every check found."""
    return tuple(found for check in CHECKS for found in check(facts))


def rows(found: Iterable[Finding]) -> list[dict[str, object]]:
    """Return findings as data for programs."""
    return [
        {
            "id": one.id,
            "result": one.result.value,
            "seen": one.seen,
            "why": one.why or None,
            "do": one.do or None,
        }
        for one in found
    ]


def bad(found: Iterable[Finding], *, strict: bool) -> bool:
    """Say whether it is bad news: a failed check, or with `strict` a warning."""
    counted = (Result.FAIL, Result.WARN) if strict else (Result.FAIL,)
    return any(one.result in counted for one in found)


def bundle(path: str, files: Mapping[str, bytes], now_s: float) -> None:
    """Write all files into one archive (.tar.gz); raise `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        os.fdopen(os.open(path, flags, MODE), "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz") as archive,
    ):
        for name, data in files.items():
            info = tarfile.TarInfo(f"xpu-agent-doctor/{name}")
            info.size, info.mode, info.mtime = len(data), MODE, int(now_s)
            archive.addfile(info, io.BytesIO(data))
