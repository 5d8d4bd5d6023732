"""The kubelet's pods from a file: a PodList in JSON or YAML. Its text is hostile input."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import yaml

from agent.errors import HostFileError, ParseError
from agent.model.foreign.pod import decode_pod_list, read_pod_list
from agent.model.pod import PodView

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 32 << 20
MAX_DEPTH = 64


def parse_pod_list(data: bytes) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList by uid, and how many were left out as malformed.

    Raises `ParseError` when the whole is not one; a single odd pod costs itself only.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ParseError(f"pod list: more than {MAX_FILE_BYTES} bytes", "")
    if data.lstrip()[:1] == b"{":
        return decode_pod_list(data)
    try:
        plain = _yaml(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ParseError(f"pod list: {type(error).__name__}: {str(error)[:120]}", "") from error
    return read_pod_list(plain)


def _yaml(data: bytes) -> object:
    """Decode YAML without aliases and deep nests: kubectl writes none, and both have no bound."""
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
            raise yaml.YAMLError("aliases and deep nests are refused")
    return yaml.load(data, Loader=yaml.CSafeLoader)


class PodListFile:
    """A PodList file that is read again when it changed. Calling it returns the pods.

    While it cannot be read or is malformed the pods of the last good reading stay; `error` says
    why, and so does a line of the log, once. A first reading that fails is the caller's to tell.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._pods: tuple[PodView, ...] = ()
        self._was_good = False
        self.error = ""
        self.left_out = 0  # malformed pods

    def __call__(self) -> tuple[PodView, ...]:
        """Return the pods; the same tuple while the file is the same."""
        before, error = self.error, ""
        try:
            stat = os.stat(self._path)
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if seen == self._seen:
                return self._pods
            self._seen = seen
            self._pods, self.left_out = parse_pod_list(self._read())
            self._was_good = True
            if self.left_out:
                fields = {"path": self._path, "left_out": self.left_out}
                log.warning("malformed_pods", extra=fields)
        except OSError as failure:
            error, self._seen = str(HostFileError(self._path, failure.errno or 0)), None
        except ParseError as failure:
            error = f"{self._path}: {failure}"
        self.error = error
        if error and error != before and self._was_good:
            log.warning("pod_list_unusable", extra={"error": error})
        return self._pods

    def _read(self) -> bytes:
        with Path(self._path).open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
