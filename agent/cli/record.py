"""`xpu-agent record`: this host as a folder or archive, there whole or not at all."""

from __future__ import annotations

import argparse
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

from agent.cli.context import parts_of
from agent.clock import SystemClock, rfc3339
from agent.host.boot import read_identity
from agent.model.snapshot import NodeSnapshot
from agent.node.look import look
from agent.node.parts import Parts
from agent.probe.tape import TapeWriter
from agent.recording.capture import capture
from agent.recording.entries import Entry, Link, RecordingError, Refused
from agent.recording.format import write
from agent.recording.open import HOST_FILE, TAPES, OpenedHost
from agent.recording.pseudonym import pseudonymise as with_other_names
from agent.recording.tree import TreeFiles
from agent.version import VERSION

ARCHIVES = (".tar.gz", ".tgz")
SALT_BYTES = 32
SAMPLES = 3

_README = """\
# Recording of a host

`{host}` holds the files of `/sys`, `/proc` and others that xpu-agent reads, `{tapes}/` the
answers of vendor libraries. {names} Made by `xpu-agent record`, version {version}.

Look at it with `xpu-agent devices --host PATH`, `xpu-agent topology --host PATH` and so on.
"""
_REPLACED = """\
Host names, UUIDs, serial numbers, MAC and other hardware addresses
were replaced by others, equal ones by equal ones.\
"""
_GENUINE = "It holds host names, serial numbers and hardware addresses as they are."


class RecordReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording holds, for the person who made it."""

    path: str
    files: int
    links: int
    refused: int  # files that answered an errno: recorded as such
    size_bytes: int  # of the text, before compression
    tapes: tuple[str, ...]  # vendors
    pseudonymised: bool


def record(
    out: str, host: OpenedHost, tapes: Mapping[str, bytes], *, pseudonymise: bool, pods: bool
) -> RecordReport:
    """Write a recording of the host to `out`: a folder, or an archive if it ends in `.tar.gz`.

    With `pods` the cgroups of pods are in it. Nothing is overwritten and nothing half-written
    stays. Raises `RecordingError` if it cannot be written, or the host is beyond the bounds.
    """
    tree, answers = capture(host.files, pods=pods), dict(tapes)
    if pseudonymise:
        tree, answers = with_other_names(tree, answers, secrets.token_bytes(SALT_BYTES))
    names = _REPLACED if pseudonymise else _GENUINE
    readme = _README.format(host=HOST_FILE, tapes=TAPES, names=names, version=VERSION)
    files = {
        "README.md": readme.encode(),
        HOST_FILE: write(tree, recording_header(host, pseudonymised=pseudonymise)).encode(),
        **{f"{TAPES}/{vendor}.jsonl": data for vendor, data in answers.items()},
    }
    save(Path(out), files)
    return _report(out, tree, files, pseudonymised=pseudonymise)


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


def recording_header(host: OpenedHost, *, pseudonymised: bool) -> dict[str, str]:
    """Return the header of a recording: its time, its kernel, and whether names were replaced."""
    header = {"pseudonymised": "yes" if pseudonymised else "no"}
    if host.wall_s is not None or host.spec is None:
        header["recorded"] = rfc3339(
            SystemClock().wall() if host.spec is None else host.wall_s or 0
        )
    if kernel := read_identity(host.files, "", "").kernel:
        header["kernel"] = kernel
    return header


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


def _report(
    out: str, tree: TreeFiles, files: Mapping[str, bytes], *, pseudonymised: bool
) -> RecordReport:
    entries: list[Entry] = [entry for _, inside in tree.walk() for entry in inside.values()]
    return RecordReport(
        path=out,
        files=sum(isinstance(entry, bytes) for entry in entries),
        links=sum(isinstance(entry, Link) for entry in entries),
        refused=sum(isinstance(entry, Refused) for entry in entries),
        size_bytes=sum(len(data) for data in files.values()),
        tapes=tuple(sorted(Path(name).stem for name in files if name.startswith(f"{TAPES}/"))),
        pseudonymised=pseudonymised,
    )


def look_with_tapes(parts: Parts, *, usage: bool = False) -> tuple[NodeSnapshot, dict[str, bytes]]:
    """Look at the host once; return the snapshot and what each vendor's library answered."""
    tapes: dict[str, bytearray] = {name: bytearray() for name in parts.vendors}
    writers = {name: TapeWriter(name, tape.extend) for name, tape in tapes.items()}
    snapshot = look(parts, samples=SAMPLES, usage=usage, tapes=writers)
    # what sysfs alone tells is in the files; a tape would only freeze it
    answered = {
        state.vendor: bytes(tapes[state.vendor])
        for state in snapshot.vendors
        if state.state == "ready" and state.inventory.value and state.inventory.value.library
    }
    return snapshot, answered


def run(arguments: argparse.Namespace) -> int:
    """Write a recording of this host, or of a recorded one."""
    parts = parts_of(arguments)
    _, tapes = look_with_tapes(parts)
    report = record(
        arguments.out,
        parts.opened,
        tapes,
        pseudonymise=arguments.pseudonymise,
        pods=arguments.pods,
    )
    answers = f", answers of {', '.join(report.tapes)}" if report.tapes else ""
    names = ", names replaced" if report.pseudonymised else ""
    print(f"{report.path}: {report.files} files, {report.size_bytes} bytes{answers}{names}")
    if report.refused:
        print(f"{report.refused} files refused to be read; their errors are recorded")
    return 0
