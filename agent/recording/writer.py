"""Writes a recording of a host to a folder or an archive."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.clock import SystemClock, rfc3339
from agent.host.kernel import read_identity
from agent.recording.capture import capture_host
from agent.recording.format import format_recording
from agent.recording.host_source import HOST_FILE, TAPES_FOLDER, HostSource
from agent.recording.pseudonyms import pseudonymise as with_other_names
from agent.recording.tree import ErrorEntry, LinkEntry, RecordingError, TreeEntry, TreeFiles
from agent.version import VERSION

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")

SALT_BYTES = 32

_README = """\
# Recording of a host

`{host}` holds the files of `/sys`, `/proc` and others that xpu-agent reads, `{tapes}/` the
answers of vendor libraries. {names} Made by `xpu-agent record`, version {version}.

Look at it with `xpu-agent devices --host PATH`, `xpu-agent topology --host PATH` and so on.
"""

_PSEUDONYMISED_NOTE = """\
Host names, UUIDs, serial numbers, MAC and other hardware addresses
were replaced by others, equal ones by equal ones.\
"""

_ORIGINAL_NOTE = "It holds host names, serial numbers and hardware addresses as they are."


class RecordingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a recording, for the person who made it."""

    path: str
    files: int
    links: int
    error_entries: int  # files whose read returned an errno, which is recorded
    size_bytes: int  # of the text, before compression
    tapes: tuple[str, ...]  # vendors
    is_pseudonymised: bool


def write_recording(
    out: str, host: HostSource, tapes: Mapping[str, bytes], *, pseudonymise: bool, pods: bool
) -> RecordingReport:
    """Write a recording of the host to `out`: a folder, or an archive if it ends in `.tar.gz`.

    With `pods` it contains the cgroups of pods. Nothing is overwritten, and an incomplete recording
    is removed. Raises `RecordingError` if it cannot be written, or the host exceeds the limits.
    """
    tree, answers = capture_host(host.files, pods=pods), dict(tapes)
    if pseudonymise:
        tree, answers = with_other_names(tree, answers, secrets.token_bytes(SALT_BYTES))
    names = _PSEUDONYMISED_NOTE if pseudonymise else _ORIGINAL_NOTE
    readme = _README.format(host=HOST_FILE, tapes=TAPES_FOLDER, names=names, version=VERSION)
    files = recording_files(host, tree, answers, readme, pseudonymised=pseudonymise)
    save_recording(Path(out), files)
    return _recording_report(out, tree, files, pseudonymised=pseudonymise)


def recording_files(
    host: HostSource,
    tree: TreeFiles,
    tapes: Mapping[str, bytes],
    readme: str,
    *,
    pseudonymised: bool,
) -> dict[str, bytes]:
    """Return the files of a recording by name."""
    header = recording_header(host, pseudonymised=pseudonymised)
    return {
        "README.md": readme.encode(),
        HOST_FILE: format_recording(tree, header).encode(),
        **{f"{TAPES_FOLDER}/{vendor}.jsonl": data for vendor, data in tapes.items()},
    }


def save_recording(out: Path, files: Mapping[str, bytes]) -> None:
    """Write files (path below the recording -> contents) as a folder, or an archive by suffix.

    Nothing is overwritten, and an incomplete recording is removed. Raises `RecordingError`.
    """
    try:
        if out.exists() or out.is_symlink():
            raise RecordingError(f"{out}: exists already; remove it or choose another name")
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
        try:
            _write_files(temporary / "new", out, files)
            os.rename(temporary / "new", out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        remedy = "choose a name in a folder that can be written"
        raise RecordingError(f"{out}: cannot be written: {error.strerror}; {remedy}") from error


def recording_header(host: HostSource, *, pseudonymised: bool) -> dict[str, str]:
    """Return the header of a recording: its time, its kernel, and whether names were replaced."""
    header = {"pseudonymised": "yes" if pseudonymised else "no"}
    if host.wall_s is not None or host.spec is None:
        header["recorded"] = rfc3339(
            SystemClock().wall() if host.spec is None else host.wall_s or 0
        )
    if kernel := read_identity(host.files, "", "").kernel:
        header["kernel"] = kernel
    return header


def _write_files(new: Path, out: Path, files: Mapping[str, bytes]) -> None:
    if not out.name.endswith(ARCHIVE_SUFFIXES):
        for name, data in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(data)
        return
    top = out.name.removesuffix(".tgz").removesuffix(".tar.gz")
    # no time stamps and no owners, so that equal recordings give equal archives
    with (
        new.open("wb") as file,
        gzip.GzipFile(fileobj=file, filename="", mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))


def _recording_report(
    out: str, tree: TreeFiles, files: Mapping[str, bytes], *, pseudonymised: bool
) -> RecordingReport:
    entries: list[TreeEntry] = [
        entry for _, directory in tree.walk() for entry in directory.values()
    ]
    return RecordingReport(
        path=out,
        files=sum(isinstance(entry, bytes) for entry in entries),
        links=sum(isinstance(entry, LinkEntry) for entry in entries),
        error_entries=sum(isinstance(entry, ErrorEntry) for entry in entries),
        size_bytes=sum(len(data) for data in files.values()),
        tapes=tuple(
            sorted(Path(name).stem for name in files if name.startswith(f"{TAPES_FOLDER}/"))
        ),
        is_pseudonymised=pseudonymised,
    )
