"""The verdicts in metrics, in the snapshot's JSON and on the page."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.settings import Settings
from agent.metrics.exposition import render_metrics
from agent.recording.host_source import HostSource
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import (
    GpuDirectHost,
    NodeIdentity,
    NodeSnapshot,
    SnapshotStore,
    VendorState,
)
from agent.snapshot.part import SnapshotPart
from agent.topology.gpudirect import check_pairs
from agent.web.page.tables import gpudirect_table
from agent.wire_formats.snapshot_json import snapshot_json
from agent.workers.manager import replace_vendor
from tests.machines import Sysfs
from tests.pipelines import JoinedHost
from tests.unit.topology_gpudirect.made import GPU, MEANS, NIC, NIC_PORT, tree, view


def picture(word: int = 0, means: GpuDirectHost = MEANS) -> NodeSnapshot:
    result = tree({NIC_PORT: {"acs_control": word}})
    shape = view(result)
    shape = replace(shape, direct=check_pairs(shape, result, means))
    return NodeSnapshot(node=NodeIdentity(name="n"), devices=SnapshotPart(shape, 1.0))


def metric(snapshot: NodeSnapshot) -> list[str]:
    page = render_metrics(snapshot, 2.0, vendor_families={}).decode()
    return [line for line in page.splitlines() if line.startswith("xpu_gpudirect_ready{")]


def test_a_ready_pair_is_1_a_slow_one_0_and_one_that_nobody_knows_is_absent() -> None:
    labels = f'{{node="n",gpu="{GPU}",rdma="{NIC}"}}'
    assert metric(picture()) == [f"xpu_gpudirect_ready{labels} 1"]
    assert metric(picture(0x1D)) == [f"xpu_gpudirect_ready{labels} 0"]
    assert metric(picture(means=GpuDirectHost())) == [f"xpu_gpudirect_ready{labels} 0"]
    unknown = GpuDirectHost(driver=True, open_modules=True)
    assert metric(picture(means=unknown)) == []


def test_the_snapshot_has_each_pair_with_its_reasons() -> None:
    document = snapshot_json(picture(0x1D), 2.0)
    assert document["parts"]["devices"]["value"]["direct"] == [  # type: ignore[index]  # JSON
        {
            "gpu": GPU,
            "nic": NIC,
            "level": "PIX",
            "verdict": "slow",
            "checks": [
                {
                    "name": "AcsRedirect",
                    "verdict": "slow",
                    "detail": f"{NIC_PORT}: ACS control word 0x001d",
                }
            ],
        }
    ]


def test_the_page_shows_the_verdict_and_why() -> None:
    page = gpudirect_table(picture(0x1D))
    assert "slow PIX" in page
    assert f"AcsRedirect: {NIC_PORT}: ACS control word 0x001d (1 pair)" in page
    assert gpudirect_table(NodeSnapshot(node=NodeIdentity(name="n"))) == ""


def test_devices_are_joined_with_their_pairs() -> None:
    sysfs = Sysfs()
    sysfs.function("pci0000:15/0000:15:01.0/0000:16:00.0")
    sysfs.function("pci0000:15/0000:15:02.0/0000:17:00.0", **{"class": "0x020700"})
    sysfs.builder.put("/sys/module/nvidia_peermem/version", b"570\n")
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    facts = JoinedHost(HostSource(files=sysfs.builder.build()), Settings(), store, ManualClock())
    facts.read_host()
    gpu = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id="0000:16:00.0", minor=0)
    nic = VendorDevice(kind=DeviceKind.RDMA, vendor="mlx5_core", bus_id="0000:17:00.0", minor=0)
    for name, devices in (("nvidia", (gpu,)), ("rdma", (nic,))):
        reports: SnapshotPart[Inventory | None] = SnapshotPart(
            Inventory(vendor=name, devices=devices), 1.0
        )
        state = VendorState(vendor=name, state="ready", inventory=reports)
        store.change(partial(replace_vendor, state=state))
        facts.join_devices()
    (pair,) = store.current.devices.value.direct
    assert (pair.gpu, pair.nic, pair.level) == ("0000:16:00.0", "0000:17:00.0", "PHB")
    assert pair.verdict == "unknown"  # as in a machine whose configuration nobody may read
