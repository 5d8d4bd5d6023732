"""The cycle that creates missing slices and removes those of pods that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.errors import AgentError
from agent.snapshot.device import DevicePartition
from agent.snapshot.inventory import CreatedSlice, SliceFailure, SliceRequest

SliceKey = tuple[str, str]  # pod's uid, device's key


def limited_pause(pause: Callable[[float], object], times: int) -> Callable[[float], None]:
    """Return a function that pauses, but only the given number of `times`.

    The agent waits for all slices of a request: many devices in use must not exceed its deadline.
    """
    remaining = iter(range(times))

    def rest(seconds: float) -> None:
        if next(remaining, None) is not None:
            pause(seconds)

    return rest


def make_missing_slices(
    requests: Iterable[SliceRequest],
    existing: Mapping[SliceKey, DevicePartition],
    make: Callable[[SliceRequest], DevicePartition],
) -> tuple[tuple[CreatedSlice, ...], tuple[SliceFailure, ...], bool]:
    """Make the requested slices that do not exist; return them, failures, and whether one was made.

    A pod has at most one slice of a device. A failure does not stop the others.
    """
    created: list[CreatedSlice] = []
    failures: list[SliceFailure] = []
    partitions, is_changed = dict(existing), False
    for request in requests:
        key = (request.pod, request.device)
        if key not in partitions:
            try:
                partitions[key] = make(request)
            except AgentError as error:
                failures.append(
                    SliceFailure(
                        pod=request.pod,
                        device=request.device,
                        reason=type(error).__name__,
                        message=str(error)[:200],
                    )
                )
                continue
            is_changed = True
        created.append(
            CreatedSlice(pod=request.pod, device=request.device, partition=partitions[key])
        )
    return tuple(created), tuple(failures), is_changed
