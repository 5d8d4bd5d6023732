"""The page's section about containers: the kubelet's account, and what was seen inside."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.allocation import (
    AllocationView,
    ContainerVerification,
    PodAllocation,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.container import RuntimeView
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation, PluginResource
from agent.snapshot.part import SnapshotPart
from agent.web.page.container_section import container_section
from agent.web.page.pods import pods_section
from tests import factory

GPU = "nvidia.com/gpu"


def test_withdrawn_and_exchanged_devices_are_shown_with_their_resource() -> None:
    plain = PluginResource(name=GPU, vendor="nvidia", state="watched", devices=8, healthy=8)
    odd = replace(plain, healthy=7, withdrawn_ids=("GPU-<7>",))
    kubelet_allocation = KubeletAllocation(
        pod_uid="a", resource=GPU, ids=("GPU-1",), exchanges=(("GPU-1", "GPU-2"),)
    )
    base = replace(factory.snapshot(), runtime=SnapshotPart(RuntimeView(), 1.0))

    def section(view: DevicePluginView) -> str:
        return container_section(replace(base, served=SnapshotPart(view, 1.0)))

    assert "withdrawn" not in section(DevicePluginView(resources=(plain,)))
    assert "exchanged" not in section(DevicePluginView(resources=(plain,)))
    shown = section(DevicePluginView(resources=(odd,), held=(kubelet_allocation,)))
    assert "GPU-&lt;7&gt;" in shown
    assert "GPU-2 in place of GPU-1" in shown


def test_a_pod_without_a_grant_is_shown_with_its_findings_the_worst_first() -> None:
    def proof(pod: str, verdict: VerificationStatus) -> ContainerVerification:
        details = () if verdict is VerificationStatus.VERIFIED else ("/dev/nvidia0 shows a card",)
        return ContainerVerification(
            container_id=pod,
            container="main",
            pod_uid=pod,
            pod=pod,
            verdict=verdict,
            details=details,
        )

    base = replace(factory.snapshot(), runtime=SnapshotPart(RuntimeView(), 1.0))
    proofs = (
        proof("a-granted", VerificationStatus.VERIFIED),
        proof("plain", VerificationStatus.EXCESS),
    )
    grants = AllocationView(pods={"a-granted": PodAllocation(uid="a-granted", name="a-granted")})
    shown = pods_section(
        replace(
            base,
            allocations=SnapshotPart(grants, 1.0),
            verification=SnapshotPart(
                VerificationView(containers={one.container_id: one for one in proofs}), 1.0
            ),
        )
    )
    assert "/dev/nvidia0 shows a card" in shown
    assert shown.index(">plain<") < shown.index(">a-granted<")
