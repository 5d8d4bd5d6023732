"""By which way an allocation gets into the container."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.model.grant.host import CdiDevice, CdiSpec
from agent.model.grant.means import MeansView
from agent.model.grant.refusal import GrantRefused
from agent.model.part import Part
from tests.unit.deviceplugin.asked import VISIBLE, names, visible
from tests.unit.deviceplugin.made import GPU, card, deciding, granted, means, node, waiting


@pytest.mark.parametrize(
    ("injection", "handler", "env", "nodes"),
    [
        ("auto", "nvidia", True, False),
        ("auto", "runc", False, True),
        ("env", "runc", True, False),
        ("nodes", "nvidia", False, True),
    ],
)
def test_the_setting_decides_the_way(injection: str, handler: str, env: bool, nodes: bool) -> None:
    snapshot = node(clustered=False, handler=handler)
    found = deciding(injection=injection).allocate(GPU, (card(2),), snapshot).edits
    assert (VISIBLE in dict(found.env)) is env
    assert ("/dev/nvidia2" in [one.path for one in found.nodes]) is nodes


def test_cdi_names_go_both_ways_that_runtimes_read() -> None:
    spec = CdiSpec(
        path="/etc/cdi/nvidia.yaml",
        kind="nvidia.com/gpu",
        devices=tuple(CdiDevice(name=card(i)) for i in range(8)),
    )
    host = replace(means()["nvidia"], cdi=(spec,))
    snapshot = replace(node(clustered=False), means=Part(MeansView(vendors={"nvidia": host}), 1.0))
    found = deciding(injection="cdi").allocate(GPU, (card(1), card(0)), snapshot)
    listed = (f"nvidia.com/gpu={card(0)}", f"nvidia.com/gpu={card(1)}")
    assert found.edits.cdi == listed
    assert found.annotations == (("cdi.k8s.io/xpu-agent_nvidia.com-gpu", ",".join(listed)),)
    with pytest.raises(GrantRefused, match="CDINameMissing"):
        deciding(injection="cdi").allocate(GPU, (card(1),), node(clustered=False))


def test_limits_of_a_share_are_the_hooks_while_nri_is_in_force() -> None:
    labels = (("koordinator.sh/gpu-isolation-provider", "HAMi-core"),)
    pod = waiting(1, labels=labels)
    assert visible(node(pod, grants={0: granted(card(6))}, in_force=True), 0) == names(6)
    with pytest.raises(GrantRefused, match="IncompleteGrant"):
        visible(node(pod, grants={0: granted(card(6))}), 0)
