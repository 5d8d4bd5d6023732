"""Reads the kubelet's pods from a file: a PodList in JSON or YAML. Its text is untrusted."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from agent.errors import ParseError
from agent.snapshot.pod import PodView
from agent.wire_formats.plain_yaml import decode_yaml
from agent.wire_formats.pod import decode_pod_list, pod_list_from_data

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 32 << 20
MAX_DEPTH = 64


def parse_pod_list(data: bytes) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList by uid, and the number of malformed ones.

    Raises `ParseError` if the whole is not a PodList; a malformed pod affects only itself.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ParseError(f"pod list: more than {MAX_FILE_BYTES} bytes", "")
    if data.lstrip()[:1] == b"{":
        return decode_pod_list(data)
    try:
        document = decode_yaml(data, MAX_DEPTH)
    except ValueError as error:
        raise ParseError(f"pod list: {str(error)[:120]}", "") from error
    return pod_list_from_data(document)


class PodListFile:
    """A PodList file that is read again after each change.

    While the file cannot be read or is malformed, the last good pods stay; `error` has the reason,
    which is logged once. The caller reports a failure of the first read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._last_stamp: tuple[int, int, int] | None = None
        self._pods: tuple[PodView, ...] = ()
        self._has_been_read = False
        self.error = ""
        self.malformed_count = 0  # malformed pods of the last read

    def read(self) -> tuple[PodView, ...]:
        """Return the pods; the same tuple while the file is the same."""
        previous_error, error = self.error, ""
        try:
            stat = os.stat(self._path)
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if stamp == self._last_stamp:
                return self._pods
            self._last_stamp = stamp
            self._pods, self.malformed_count = parse_pod_list(self._read())
            self._has_been_read = True
            if self.malformed_count:
                fields = {"path": self._path, "left_out": self.malformed_count}
                log.warning("malformed_pods", extra=fields)
        except OSError as failure:
            error, self._last_stamp = f"{self._path}: {failure.strerror}", None
        except ParseError as failure:
            error = f"{self._path}: {failure}"
        self.error = error
        if error and error != previous_error and self._has_been_read:
            log.warning("pod_list_unusable", extra={"error": error})
        return self._pods

    def _read(self) -> bytes:
        with Path(self._path).open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
