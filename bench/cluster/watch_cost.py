"""A watch of 250 pods: a list in which all have changed, and one event, beside plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle
from typing import Any

from agent.kube.resources import OWN_PODS
from agent.kube.watch import machine
from agent.kube.watch.cache import WatchCache
from agent.kube.watch.decoder import WatchDecoder
from agent.kube.watch.machine import (
    CacheEffect,
    DelayCommand,
    DelayOver,
    ListWatchState,
    PageSummary,
    WatchEvent,
    WatchTransition,
)
from agent.snapshot.pod import PodView
from agent.wire_formats.pod import PodObject
from bench.cluster.watch_pods import event, page
from bench.counters import cost, cost_metric, cpu_ms
from bench.harness import Row, compare

PODS = 250
PAGES = 4  # prepared ones, each with all pods changed
EVENTS = 100  # in a figure
PAGE_BUDGET_MS = 8
EVENT_BUDGET_MS = 0.3


class Followed:
    """A watch without its connection: what the runner does with what came."""

    def __init__(self) -> None:
        self._reader = WatchDecoder("bench", PodObject)
        self._view: WatchCache[PodObject, PodView] = WatchCache("pods", OWN_PODS.convert)
        self._step = machine.step(ListWatchState(), DelayOver())
        self.told: Mapping[str, PodView] = {}

    def list(self, data: bytes) -> None:
        """Take a whole list, as if it had been asked for anew."""
        self._step = WatchTransition(ListWatchState(recent=True), DelayCommand(0.0))
        result = self._reader.decode_page(data)
        page_summary = PageSummary(
            version=result.version, token="", objects=len(result.objects), bytes=len(data)
        )
        self._take(machine.step(self._step.state, page_summary))
        self._view.stage(result.objects)
        if self._view.replace():
            self.told = self._view.mapping

    def line(self, data: bytes) -> None:
        """Take one event."""
        line = self._reader.decode_line(data)
        assert isinstance(line.event, WatchEvent)
        self._take(machine.step(self._step.state, line.event))
        if line.item is not None and self._step.effect is CacheEffect.UPDATE:
            self._view.update(line.item)
            self.told = self._view.mapping

    def _take(self, step: WatchTransition) -> None:
        self._step = step


class Plain:
    """The same as one writes it first: all of the JSON, then what is needed out of dicts."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    def list(self, data: bytes) -> None:
        """Take a whole list."""
        self.pods = {item["metadata"]["uid"]: _needed(item) for item in json.loads(data)["items"]}

    def line(self, data: bytes) -> None:
        """Take one event."""
        item = json.loads(data)["object"]
        self.pods = {**self.pods, item["metadata"]["uid"]: _needed(item)}


def _needed(item: dict[str, Any]) -> dict[str, Any]:
    meta, spec, status = item["metadata"], item["spec"], item["status"]
    images = {container["name"]: container["image"] for container in spec["containers"]}
    return {
        "uid": meta["uid"],
        "name": meta["name"],
        "namespace": meta["namespace"],
        "labels": meta.get("labels", {}),
        "annotations": meta.get("annotations", {}),
        "priority": spec.get("priority"),
        "phase": status["phase"],
        "qos": status["qosClass"],
        "containers": [
            (one["containerID"], one["name"], images[one["name"]])
            for one in status["containerStatuses"]
        ],
    }


def _over(take: Callable[[bytes], None], messages: list[bytes], times: int) -> Callable[[], None]:
    """Return work that takes so many messages, each time the next ones."""
    following = cycle(messages)

    def work() -> None:
        for _ in range(times):
            take(next(following))

    return work


def rows() -> Iterator[Row]:
    """Yield the cost of a list and of an event, and their CPU time against the budgets."""
    pages = [page(PODS, version) for version in range(1, PAGES + 1)]
    versions = count(PAGES + 1)
    events = [event(index % PODS, next(versions)) for index in range(40 * EVENTS)]
    subject, peer = Followed(), Plain()
    lists, plain_lists = _over(subject.list, pages, PAGES), _over(peer.list, pages, PAGES)
    yield compare(
        "watch_list",
        cost_metric(),
        lambda: cost(lists),
        peer=lambda: cost(plain_lists),
        gate="ratio_peer<=0.3",
    )
    yield compare(
        "watch_list_page",
        "cpu_ms",
        lambda: cpu_ms(lists) / PAGES,
        gate=f"subject<={PAGE_BUDGET_MS}",
    )
    lines, plain_lines = _over(subject.line, events, EVENTS), _over(peer.line, events, EVENTS)
    yield compare(
        "watch_event",
        cost_metric(),
        lambda: cost(lines),
        peer=lambda: cost(plain_lines),
        gate="ratio_peer<=0.6",
    )
    yield compare(
        "watch_event_each",
        "cpu_ms",
        lambda: cpu_ms(lines) / EVENTS,
        gate=f"subject<={EVENT_BUDGET_MS}",
    )
    if subject.told.keys() != {f"team-a/train-{index}" for index in range(PODS)}:
        raise AssertionError("the view is not that of the pages")
