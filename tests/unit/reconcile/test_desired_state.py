from __future__ import annotations

import pytest

from agent.cgroup.cpu import WeightFormula
from agent.reconcile.desired_state import (
    CONTAINER,
    POD,
    SANDBOX,
    HookAnswers,
    desired_writes,
    value_source,
)
from agent.snapshot.container import Adjustment, LinuxResources, PodSandbox
from agent.snapshot.device import Pairs
from tests.realgroups import UID

WHOLE = Adjustment(
    resources=LinuxResources(cpus="0", quota_us=50000, memory_bytes=1 << 30, shares=2)
)
ANSWERS = HookAnswers(answers=(("batch_resources", WHOLE),), adjustment=WHOLE)
IN_POD = f"/kubepods/besteffort/pod{UID}"
ID = "91cf0413ee0e"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("cgroup", "level", "written"),
    [
        pytest.param(IN_POD, POD, 4, id="a pod"),
        pytest.param(f"{IN_POD}/{ID}", CONTAINER, 4, id="a container"),
        pytest.param(f"{IN_POD}/{ID}", SANDBOX, 1, id="a sandbox: CPUs alone"),
        pytest.param("", POD, 0, id="nothing: the group of all"),
        pytest.param("/", POD, 0, id="the group of all"),
        pytest.param("/kubepods", POD, 0, id="the group of all pods"),
        pytest.param("/kubepods/besteffort", POD, 0, id="that of a class"),
        pytest.param("", CONTAINER, 0, id="no container"),
        pytest.param(IN_POD, CONTAINER, 0, id="the pod for its container"),
        pytest.param(f"{IN_POD}/", CONTAINER, 0, id="a container without an id"),
        pytest.param(f"/system.slice/{ID}", CONTAINER, 0, id="outside of pods"),
        pytest.param(f"{IN_POD}/../{ID}", CONTAINER, 0, id="upwards"),
        pytest.param(f"{IN_POD}/../{ID}", SANDBOX, 0, id="upwards, for a sandbox"),
    ],
)
def test_only_groups_of_pods_and_of_what_is_in_them_are_written(
    cgroup: str, level: str, written: int, version: int
) -> None:
    wishes, notes = desired_writes(cgroup, level, ANSWERS, version, WeightFormula.LINEAR)
    assert len(wishes) == written
    assert {wish.cgroup for wish in wishes} <= {cgroup}
    assert [note.reason for note in notes] == ([] if written else ["BadCgroupPath"])


@pytest.mark.parametrize("version", [1, 2])
def test_the_audit_of_each_file_has_the_words_of_koordinator(version: int) -> None:
    resources = LinuxResources(cpus="0-3", quota_us=-1, memory_bytes=1 << 20, shares=1024)
    whole = Adjustment(resources=resources, bvt_warp_ns=2)
    answers = HookAnswers(answers=(("batch_resources", whole),), adjustment=whole)
    messages = {
        level: [
            one.message
            for one in desired_writes(cgroup, level, answers, version, WeightFormula.LINEAR)[0]
        ]
        for level, cgroup in ((POD, IN_POD), (CONTAINER, f"{IN_POD}/{ID}"))
    }
    assert messages[CONTAINER] == [
        "set container cpuset to 0-3",
        "set container cpu share to 1024",
        "set container cfs quota to -1",
        "set container memory limit to 1048576",
    ]
    assert messages[POD] == [
        *(text.replace("container", "pod") for text in messages[CONTAINER]),
        "set pod bvt to 2",
    ]


@pytest.mark.parametrize(
    ("hook", "labels", "annotations", "source"),
    [
        ("cpuset", (), (), "the CPUs of the node that no pod owns"),
        (
            "cpuset",
            (),
            (("scheduling.koordinator.sh/resource-status", "{}"),),
            "Pod shop/web annotation scheduling.koordinator.sh/resource-status",
        ),
        (
            "batch_resources",
            (),
            (),
            "Pod shop/web requests of kubernetes.io/batch-cpu and batch-memory",
        ),
        (
            "cpu_normalization",
            (),
            (),
            "Node annotation node.koordinator.sh/cpu-normalization-ratio",
        ),
        (
            "group_identity",
            (("koordinator.sh/qosClass", "LSE"),),
            (),
            "NodeSLO spec.resourceQOSStrategy.lsrClass.cpuQOS.groupIdentity",
        ),
        (
            "group_identity",
            (),
            (),
            "NodeSLO spec.resourceQOSStrategy.beClass.cpuQOS.groupIdentity",
        ),
        (
            "group_identity",
            (("koordinator.sh/qosClass", "LS"),),
            (("koordinator.sh/cpuQOS", "{}"),),
            "Pod shop/web annotation koordinator.sh/cpuQOS",
        ),
        ("another", (), (), ""),
    ],
)
def test_a_value_of_a_hook_names_the_field_that_requests_it(
    hook: str, labels: Pairs, annotations: Pairs, source: str
) -> None:
    pod = PodSandbox(
        id="s",
        name="web",
        namespace="shop",
        labels=labels,
        annotations=annotations,
        cgroup_parent="/kubepods/besteffort/podu",
    )
    assert value_source(hook, pod) == source
