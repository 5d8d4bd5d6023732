from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from tests.factory import NOW_S, gpu, snapshot


@pytest.mark.parametrize(("asked", "maker"), [("ascend", "huawei"), ("nvidia", "nvidia")])
def test_the_driver_is_that_of_the_vendor_that_reported_the_device(asked: str, maker: str) -> None:
    card = gpu(0, vendor=maker)
    answer = Inventory(vendor=asked, devices=(card.info,), driver_version="24.1.0")
    other = Inventory(vendor="rdma", driver_version="9")
    vendors = tuple(
        VendorState(vendor=result.vendor, state="ready", inventory=SnapshotPart(result, NOW_S))
        for result in (answer, other)
    )
    page = MetricsRenderer({}).render(replace(snapshot((card,)), vendors=vendors), NOW_S).decode()
    (line,) = (line for line in page.splitlines() if line.startswith("xpu_device_info{"))
    assert 'driver_version="24.1.0"' in line
