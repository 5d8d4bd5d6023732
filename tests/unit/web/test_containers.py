"""The page's section about containers, as far as the kubelet's account of devices is concerned."""

from __future__ import annotations

from msgspec.structs import replace

from agent.model.part import Part
from agent.model.runtime.seen import RuntimeView
from agent.model.runtime.served import Held, ResourceServed, ServedView
from agent.web.tables.containers import container_section
from tests import factory

GPU = "nvidia.com/gpu"


def test_withdrawn_and_exchanged_devices_are_shown_with_their_resource() -> None:
    plain = ResourceServed(name=GPU, vendor="nvidia", state="watched", devices=8, healthy=8)
    odd = replace(plain, healthy=7, withdrawn=("GPU-<7>",))
    held = Held(pod_uid="a", resource=GPU, ids=("GPU-1",), exchanges=(("GPU-1", "GPU-2"),))
    base = replace(factory.snapshot(), runtime=Part(RuntimeView(), 1.0))

    def section(view: ServedView) -> str:
        return container_section(replace(base, served=Part(view, 1.0)))

    assert "withdrawn" not in section(ServedView(resources=(plain,)))
    assert "exchanged" not in section(ServedView(resources=(plain,)))
    shown = section(ServedView(resources=(odd,), held=(held,)))
    assert "GPU-&lt;7&gt;" in shown
    assert "GPU-2 in place of GPU-1" in shown
