"""An agent that stands still, for tests of its HTTP side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from agent.cgroup.writing.audit import Audit
from agent.model.device import Device, DeviceKind, DeviceLink, Health, HealthState
from agent.model.part import Part
from agent.model.selfcheck import Check, SelfReport
from agent.model.snapshot import DeviceView, NodeSnapshot
from agent.publish.series.cluster import ClusterStatus
from agent.web.base import EventLine, PublishedObject
from tests import factory

T = TypeVar("T")
HOSTILE = "<script>alert('x')</script>\"&"


def failed(device: Device, reason: str) -> Device:
    health = Health(state=HealthState.FAILED, reason=reason, message=f"broken {HOSTILE}")
    return replace(device, info=replace(device.info, health=health))


def eight_cards(**parts: object) -> NodeSnapshot:
    """Eight cards that all see each other through switches, the third failed, and four NICs."""
    cards = [factory.gpu(index) for index in range(8)]
    cards[2] = failed(cards[2], "Xid79")
    nics = [factory.nic(index) for index in range(4)]
    keys = sorted(card.key for card in cards if card.info.kind is DeviceKind.GPU)
    links = tuple(
        DeviceLink(a=a, b=b, type="NVSwitch", count=18) for a in keys for b in keys if a < b
    )
    view = DeviceView(devices=(*cards, *nics), links=links)
    pods = (factory.pod(0, 2), factory.pod(1, namespace=HOSTILE, name="p"))
    base = replace(factory.snapshot(tuple(cards), pods), devices=Part(view, factory.NOW_S))
    return replace(base, **parts)


@dataclass
class StillView:
    """Answers from the values it is given."""

    now: NodeSnapshot
    ready: bool = True
    notice: str = f"recorded host {HOSTILE}"
    status: ClusterStatus | None = None

    def snapshot(self) -> NodeSnapshot:
        return self.now

    def now_s(self) -> tuple[float, float]:
        return factory.NOW_S + 3, factory.BOOT_S

    def self_report(self) -> SelfReport:
        checks = (Check(name="output", ok=self.ready, message=HOSTILE), Check(name="a", ok=True))
        return SelfReport(checks)

    def objects(self) -> tuple[PublishedObject, ...]:
        return (PublishedObject(kind="Device", text=f"kind: {HOSTILE}", where="device.yaml"),)

    def events(self) -> tuple[EventLine, ...]:
        return (EventLine(time="t", reason="DeviceFailed", about="GPU 2", message=HOSTILE),)

    def cluster(self) -> ClusterStatus | None:
        return self.status

    def audit(self) -> tuple[Audit, ...]:
        return ()

    def metrics(self, *, openmetrics: bool) -> bytes:
        return b"up 1\n# EOF\n" if openmetrics else b"up 1\n"

    async def offload(self, work: Callable[[], T]) -> T:
        return work()
