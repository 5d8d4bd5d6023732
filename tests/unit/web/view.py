"""An agent that stands still, for tests of its HTTP side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from agent.config.sources import LoadedSettings, decode_settings
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.device import Device, DeviceKind, DeviceLink, Health, HealthState
from agent.snapshot.edits import ContainerInjection
from agent.snapshot.node import DeviceView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodEvictionView
from agent.snapshot.publications import DesiredObject, EventLine, Publication
from agent.snapshot.self_check import FileExplanation, SelfCheck
from agent.web.view import ExplanationSource
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
    base = factory.snapshot(tuple(cards), pods)
    read = {
        name: SnapshotPart(getattr(base, name).value, factory.NOW_S)
        for name in ("cpus", "numa", "pci")
    }
    return replace(base, **{**read, "devices": SnapshotPart(view, factory.NOW_S), **parts})


class NoExplanations:
    """Knows no file and no container."""

    def explain_file(self, path: str) -> FileExplanation | None:  # noqa: ARG002 - as its Protocol
        return None

    def explain_group(self, cgroup: str) -> tuple[FileExplanation, ...]:  # noqa: ARG002
        return ()

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:  # noqa: ARG002 - as its Protocol
        return None

    def explain_injection(self, pod_uid: str) -> tuple[ContainerInjection, ...]:  # noqa: ARG002
        return ()


@dataclass
class StillView:
    """Answers from the values it is given."""

    now: NodeSnapshot
    ready: bool = True
    notice: str = f"recorded host {HOSTILE}"
    settings: LoadedSettings = LoadedSettings(decode_settings({}), {})
    explanations: ExplanationSource = field(default_factory=NoExplanations)
    runbook: Runbook = OWN_RUNBOOK

    def snapshot(self) -> NodeSnapshot:
        checks = (
            SelfCheck(name="output", ok=self.ready, message=HOSTILE),
            SelfCheck(name="a", ok=True),
        )
        desired = DesiredObject(
            file_name="device.yaml", api_version="v1", kind="Device", name="n", body={"a": HOSTILE}
        )
        event = EventLine(time="t", reason="DeviceFailed", about="GPU 2", message=HOSTILE)
        return replace(
            self.now,
            checks=checks,
            publications=(Publication(desired=desired, where="device.yaml"),),
            events=(*self.now.events, event),
        )

    def now_s(self) -> tuple[float, float]:
        return factory.NOW_S + 3, factory.BOOT_S

    def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
        yield b"up 1\n"
        if openmetrics:
            yield b"# EOF\n"

    async def offload(self, work: Callable[[], T]) -> T:
        return work()
