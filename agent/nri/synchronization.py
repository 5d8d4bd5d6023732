"""Synchronize: the runtime's list of pods and containers, sent in parts, parsed after the answer.

The runtime holds up all pods of the node until the answer. Therefore only the outline of a part
is read before it: where each pod and container begins, and whether more parts follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError
from msgspec.structs import replace

from agent.errors import ParseError
from agent.nri.messages import has_stopped, parse_runtime_container, parse_sandbox
from agent.nri.versions import RuntimePeer
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer
from proto.gen import nri_container_pb2 as wire

MAX_BYTES = 64 << 20  # of all parts; a container takes about 5 KiB
BATCH_SIZE = 16  # pods or containers parsed before other tasks of the loop run

_PODS, _CONTAINERS, _MORE = 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10  # bytes

T = TypeVar("T")


class SynchronizationList:
    """The parts of one full list; each list has its own object."""

    def __init__(self) -> None:
        """Start with an empty list."""
        self._pods: list[memoryview] = []
        self._containers: list[memoryview] = []
        self._bytes = 0
        self.dropped = 0  # number of invalid entries

    def add(self, payload: bytes) -> bool:
        """Add a part; return whether more follow. Raises `ParseError` if invalid or too large."""
        self._bytes += len(payload)
        if self._bytes > MAX_BYTES:
            raise ParseError(f"Synchronize: more than {MAX_BYTES} bytes", "")
        more = False
        for number, value in message_fields(payload):
            if number == _MORE and isinstance(value, int):
                more = bool(value)
            elif isinstance(value, int):
                continue
            elif number == _PODS:
                self._pods.append(value)
            elif number == _CONTAINERS:
                self._containers.append(value)
        return more

    async def read(self, peer: RuntimePeer) -> tuple[list[PodSandbox], list[RuntimeContainer]]:
        """Return all pods and containers; invalid entries and stopped containers are left out.

        `peer` is the runtime that sent the list. A sandbox with a container in the list has not
        stopped: some runtimes list running sandboxes without a process.
        """
        pods = await self._parse_all(self._pods, partial(_parse_pod, peer=peer))
        containers = await self._parse_all(self._containers, _parse_container)
        alive = [
            container for container in containers if container.state is not ContainerState.STOPPED
        ]
        in_use = {container.sandbox_id for container in alive}
        return [
            replace(pod, stopped=False) if pod.stopped and pod.id in in_use else pod for pod in pods
        ], alive

    async def _parse_all(
        self, entries: list[memoryview], read: Callable[[memoryview], T]
    ) -> list[T]:
        values: list[T] = []
        for at, entry in enumerate(entries):
            if at % BATCH_SIZE == BATCH_SIZE - 1:
                await asyncio.sleep(0)
            try:
                values.append(read(entry))
            except DecodeError:
                self.dropped += 1
        return values


def message_fields(message: bytes) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a protobuf message: the number, and the value or a view of its bytes.

    Fields of fixed width are left out. Raises `ParseError` if it is not a message.
    """
    view, at, end = memoryview(message), 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, at = _varint(message, at)
            if length > end - at or not number:
                raise ParseError(f"message: field {number} of {length} bytes at {at}", "")
            yield number, view[at : at + length]
            at += length
        elif kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ParseError(f"message: wire type {kind} at {at}", "")
    if at > end:
        raise ParseError("message: ends within a field", "")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(message[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise ParseError(f"message: no number at {at}", "")


def _parse_pod(entry: memoryview, peer: RuntimePeer) -> PodSandbox:
    message = wire.PodSandbox.FromString(bytes(entry))
    sandbox = parse_sandbox(message)
    return replace(sandbox, stopped=True) if has_stopped(message, peer) else sandbox


def _parse_container(entry: memoryview) -> RuntimeContainer:
    return parse_runtime_container(wire.Container.FromString(bytes(entry)))
