"""`xpu-agent record`: this host as a folder or archive, there whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agent.recording.entries import RecordingError

ARCHIVES = (".tar.gz", ".tgz")


def save(out: Path, files: Mapping[str, bytes]) -> None:
    """Write files (path below the recording -> contents) as a folder, or an archive by suffix.

    Nothing is overwritten, and nothing half-written stays. Raises `RecordingError`.
    """
    try:
        if out.exists() or out.is_symlink():
            raise RecordingError(f"{out}: exists already; remove it or choose another name")
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
        try:
            _fill(temporary / "new", out, files)
            os.rename(temporary / "new", out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise RecordingError(f"{out}: cannot be written: {error.strerror}") from error


def _fill(new: Path, out: Path, files: Mapping[str, bytes]) -> None:
    if not out.name.endswith(ARCHIVES):
        for name, data in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(data)
        return
    top = out.name.removesuffix(".tgz").removesuffix(".tar.gz")
    # no time stamps and no owners: equal recordings are equal archives
    with (
        new.open("wb") as file,
        gzip.GzipFile(fileobj=file, filename="", mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
