"""The series that a vendor's device has under another exporter's names, read from a page."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.allocation import AllocationView
from agent.snapshot.device import Device, Placement
from agent.snapshot.inventory import DeviceSample, Inventory
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import AliasMatch, AliasTable, VendorDescription
from tests.factory import NOW_S, pod, snapshot

USER = pod(0)


class AliasPage:
    """Samples of a page by the names of a table, of the devices that were sampled."""

    def __init__(
        self,
        vendor: VendorDescription,
        table: AliasTable,
        inventory: Inventory,
        samples: tuple[DeviceSample, ...],
        *,
        is_used: bool = False,  # the first device, by `USER`
        place: Placement | None = None,  # of each device
    ) -> None:
        renderer = MetricsRenderer(
            {vendor.name: vendor.families}, aliases=(table.name,), alias_tables=(table,)
        )
        assert renderer.errors == ()
        node = _node(inventory, samples, is_used=is_used, place=place or Placement())
        page = renderer.render(node, NOW_S).decode()
        openmetrics = renderer.render(node, NOW_S, openmetrics=True).decode()
        list(openmetrics_parser.text_string_to_metric_families(openmetrics))  # type: ignore[no-untyped-call]  # prometheus_client
        names = {metric.name for metric in table.metrics}
        self._promised = {
            metric.name for metric in table.metrics if metric.match is not AliasMatch.ABSENT
        }
        self.series: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                # the parser gives counters that suffix if they have none
                name = sample.name if sample.name in names else sample.name.removesuffix("_total")
                if name in names:
                    self.series.setdefault(name, []).append((sample.labels, sample.value))

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the only series that has these labels."""
        values = [
            value for result, value in self.series.get(name, ()) if labels.items() <= result.items()
        ]
        assert len(values) <= 1
        return values[0] if values else None

    def names_without_data(self) -> set[str]:
        """Return the names that have no series here, although the table promises one."""
        return self._promised - self.series.keys()

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each series."""
        return [labels for labels, _ in self.series.get(name, ())]


def _node(
    inventory: Inventory,
    samples: tuple[DeviceSample, ...],
    *,
    is_used: bool,
    place: Placement,
) -> NodeSnapshot:
    sampled = {sample.key for sample in samples}
    devices = tuple(
        Device(info=info, place=place) for info in inventory.devices if info.key in sampled
    )
    state = VendorState(
        vendor=inventory.vendor,
        inventory=SnapshotPart(inventory, NOW_S),
        samples=SnapshotPart(samples, NOW_S),
    )
    entries = {devices[0].key: (USER.uid,)} if is_used else {}
    return replace(
        snapshot(devices, pods=(USER,)),
        vendors=(state,),
        allocations=SnapshotPart(AllocationView(held=entries), NOW_S),
    )
