"""Explains why files have their values. For the thread that writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from agent.cgroup.device_values import DEVICE_FILES
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import ALL_KEYS, device_key
from agent.cgroup.ledger import SYSCTL_HIERARCHY, LedgerEntry
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.errors import HostFileError
from agent.reconcile.qos_directories import VALUE
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import DesiredFile, DesiredFiles, FileExplanation, FileRequest

MAX_FILES = 512  # of one pod
MAX_CHANGES = 20  # of one file
MAX_CONTENT = 4096  # bytes of a file that are shown
ON, PLAN = "on", "plan"
_DEVICE_KEYS = tuple(device_key(file, "0:0") for file in DEVICE_FILES.values())


class FileExplainer:
    """Answers from the desired values, the ledger, and the records of one writer."""

    def __init__(
        self,
        writer: CgroupWriter,
        files: DesiredFiles,
        changes: Iterable[AuditRecord],
        now_s: float,
    ) -> None:
        """Answer for one moment; `changes` are the latest ones, oldest first."""
        self._writer = writer
        self._files = files
        self._changes = tuple(changes)
        self._now_s = now_s

    def explain_file(self, path: str) -> FileExplanation | None:
        """Return the explanation; `None` if there is no such file and nobody wants it."""
        path = os.path.normpath(path)
        requests = [
            (one, mode)
            for one, mode in self._requests()
            if one.cgroup in path and self._has_path(one, path)
        ]
        key = next((find_key(one.key_name) for one, _ in requests), None)
        entries = [
            entry
            for entry in self._writer.ledger.entries.values()
            if entry.path in path and self._entry_path(entry) == path
        ]
        if not requests and not entries and not self._is_cgroup_file(path):
            return None
        # a file with a line for each device has several: that of the first request
        entry = next((one for one in entries if key is not None and one.key == key.name), None)
        entry = entry or next(iter(entries), None)
        explanation = self._explanation(path, requests, entry)
        is_known = explanation.current is not None or requests or entries or explanation.changes
        return explanation if is_known else None

    def explain_group(self, cgroup: str) -> tuple[FileExplanation, ...]:
        """Return the explanations of all files of a group and of those below that someone wants."""
        targets: dict[tuple[str, str], list[tuple[DesiredFile, str]]] = {}
        for one, mode in self._requests():
            if one.cgroup == cgroup or one.cgroup.startswith(f"{cgroup}/"):
                targets.setdefault((one.cgroup, one.key_name), []).append((one, mode))
        explanations = []
        for (group, name), requests in sorted(targets.items())[:MAX_FILES]:
            key = find_key(name)
            if key is None:
                continue
            values = self._writer.values
            paths = values.paths(group, key)
            entry = self._writer.ledger.entries.get((values.hierarchy(key), group, name))
            path = paths[0] if paths else f"{group}/{name}"
            explanations.append(self._explanation(path, requests, entry))
        return tuple(explanations)

    def _requests(self) -> Iterator[tuple[DesiredFile, str]]:
        """Yield all desired values with their modes; of one file, the one that wins comes first."""
        files = self._files
        for group in (files.strategies, files.directories, files.hooks):
            yield from ((one, ON) for one in group)
        for group in (files.planned_strategies, files.planned_hooks):
            yield from ((one, PLAN) for one in group)

    def _is_cgroup_file(self, path: str) -> bool:
        """Return whether the agent could write the file; the content of others is never shown."""
        layout, name = self._writer.values.layout, path.rpartition("/")[2]
        return any(
            name in key.files(layout.version)
            and (mount := layout.mount(key.controller)) is not None
            and path.startswith(f"{mount}/")
            for key in (*ALL_KEYS, *_DEVICE_KEYS)
        )

    def _has_path(self, one: DesiredFile, path: str) -> bool:
        key = find_key(one.key_name)
        return key is not None and path in self._writer.values.paths(one.cgroup, key)

    def _entry_path(self, entry: LedgerEntry) -> str:
        if entry.hierarchy == SYSCTL_HIERARCHY and entry.key == VALUE:
            return entry.path  # a switch of the kernel that a hook needs
        key = find_key(entry.key)
        paths = () if key is None else self._writer.values.paths(entry.path, key)
        return paths[0] if paths else ""

    def _explanation(
        self,
        path: str,
        requests: list[tuple[DesiredFile, str]],
        entry: LedgerEntry | None,
    ) -> FileExplanation:
        winners: dict[str, DesiredFile] = {}  # of each device, where the file has lines of devices
        for one, mode in requests:
            if mode == ON:
                winners.setdefault(one.key_name, one)
        return FileExplanation(
            path=path,
            current=self._read(path),
            requests=tuple(
                FileRequest(
                    owner=one.owner,
                    mode=mode,
                    value=one.text(self._files.version),
                    wins=one is winners.get(one.key_name),
                    message=one.message,
                    source=one.source,
                )
                for one, mode in requests
            ),
            original=None if entry is None else self._ledger_text(entry, entry.original),
            owner="" if entry is None else entry.owner,
            own_values=()
            if entry is None
            else tuple(self._ledger_text(entry, value) for value in entry.own_values),
            refusal="; ".join(filter(None, map(self._refusal, winners.values()))),
            is_contested=any(map(self._is_contested, winners.values())),
            changes=tuple(change for change in self._changes if change.path == path)[-MAX_CHANGES:],
        )

    def _ledger_text(self, entry: LedgerEntry, value: str) -> str:
        key = find_key(entry.key)
        if key is None:
            return value
        return key.text(self._writer.values.version, key.from_ledger(value)).strip()

    def _refusal(self, winner: DesiredFile) -> str:
        if not isinstance(winner, DesiredValue):
            return ""
        return self._writer.explain(winner, self._now_s)

    def _is_contested(self, winner: DesiredFile) -> bool:
        contested = self._writer.overwrites.contested_targets(self._now_s)
        return (winner.cgroup, winner.key_name) in contested

    def _read(self, path: str) -> str | None:
        files = self._writer.values.files
        try:
            return files.read(path, MAX_CONTENT).decode("utf-8", "replace").strip()
        except HostFileError:
            return None
        finally:
            files.close(path)  # the next cycle opens again what it needs
