"""The page's section about containers: the kubelet's account, and what was seen inside."""

from __future__ import annotations

from msgspec.structs import replace

from agent.model.grant.checked import GrantsView, PodGrant
from agent.model.grant.proof import Proof, ProofView, Verdict
from agent.model.part import Part
from agent.model.runtime.seen import RuntimeView
from agent.model.runtime.served import Held, ResourceServed, ServedView
from agent.web.tables.containers import container_section
from tests import factory

GPU = "nvidia.com/gpu"


def test_withdrawn_and_exchanged_devices_are_shown_with_their_resource() -> None:
    plain = ResourceServed(name=GPU, vendor="nvidia", state="watched", devices=8, healthy=8)
    odd = replace(plain, healthy=7, withdrawn_ids=("GPU-<7>",))
    held = Held(pod_uid="a", resource=GPU, ids=("GPU-1",), exchanges=(("GPU-1", "GPU-2"),))
    base = replace(factory.snapshot(), runtime=Part(RuntimeView(), 1.0))

    def section(view: ServedView) -> str:
        return container_section(replace(base, served=Part(view, 1.0)))

    assert "withdrawn" not in section(ServedView(resources=(plain,)))
    assert "exchanged" not in section(ServedView(resources=(plain,)))
    shown = section(ServedView(resources=(odd,), held=(held,)))
    assert "GPU-&lt;7&gt;" in shown
    assert "GPU-2 in place of GPU-1" in shown


def test_a_pod_without_a_grant_is_shown_with_what_was_seen_inside_the_worst_first() -> None:
    def proof(pod: str, verdict: Verdict) -> Proof:
        details = () if verdict is Verdict.VERIFIED else ("/dev/nvidia0 shows a card",)
        return Proof(
            container_id=pod,
            container="main",
            pod_uid=pod,
            pod=pod,
            verdict=verdict,
            details=details,
        )

    base = replace(factory.snapshot(), runtime=Part(RuntimeView(), 1.0))
    proofs = (proof("a-granted", Verdict.VERIFIED), proof("plain", Verdict.EXCESS))
    grants = GrantsView(pods={"a-granted": PodGrant(uid="a-granted", name="a-granted")})
    shown = container_section(
        replace(
            base,
            grants=Part(grants, 1.0),
            proof=Part(ProofView(containers={one.container_id: one for one in proofs}), 1.0),
        )
    )
    assert "/dev/nvidia0 shows a card" in shown
    assert shown.index(">plain<") < shown.index(">a-granted<")
