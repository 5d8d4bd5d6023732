"""A pod's classes by label and by place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.containers.qos_class import kube_qos, qos_label
from agent.snapshot.pod import KubeQos
from tests.unit.containers.scene import pod

G, BU, BE = KubeQos.GUARANTEED, KubeQos.BURSTABLE, KubeQos.BEST_EFFORT


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ("/kubepods/besteffort/pod1", BE),
        ("kubepods/burstable/pod1", BU),
        ("/kubepods/pod1", G),
        ("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice", BE),
        ("kubepods-burstable-pod1.slice", BU),
        ("kubepods-pod1.slice", G),
        ("/x.slice/x-kubepods.slice/x-kubepods-besteffort.slice/x-kubepods-besteffort-p.slice", BE),
        ("/kubepods/pod-besteffort", G),
        ("/besteffort-team.slice/kubepods.slice/kubepods-pod1.slice", G),
        ("/kubepods/besteffort/pod1/kubelet/kubepods/burstable/pod2", BU),  # of a kubelet in a pod
        ("/kubepods/burstable/pod1/kubelet/kubepods/besteffort/pod2", BE),
        ("/", None),
        ("", None),
    ],
)
def test_kubernetes_class_follows_from_whole_components_of_the_path(
    parent: str, expected: KubeQos | None
) -> None:
    assert kube_qos(replace(pod(), cgroup_parent=parent)) is expected


@pytest.mark.parametrize(("label", "expected"), [("LSE", "LSE"), ("ls", ""), ("other", "")])
def test_only_a_label_that_is_a_class_counts(label: str, expected: str) -> None:
    assert qos_label(pod(label)) == expected
    assert qos_label(pod()) == ""
