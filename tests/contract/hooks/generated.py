"""Pods as users may write them, for every key that a hook reads."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.containers.core_scheduling import GROUP_LABEL, POLICY_LABEL
from agent.containers.hooks import OOM_DEFAULT, OOM_SPEC
from agent.containers.identity import CPU_QOS
from agent.containers.resctrl import RESCTRL
from agent.snapshot.container import (
    ContainerSpec,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
)
from agent.snapshot.host_devices import KernelFeatures
from agent.wire_formats.annotations import QOS_CLASSES, QOS_LABEL
from agent.wire_formats.extended_resource_spec import EXTENDED_SPEC
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.hostile import texts
from tests.unit.containers.scene import PARENTS, UID, scene, to_json

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
numbers = st.integers(-(2**70), 2**70) | st.integers(-2, 5000)
plain = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.floats(allow_nan=True),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=8,
)
amounts = numbers | st.sampled_from(("500", "1Gi", "2500m", "-1", "1e3", "x", "")) | plain
whole = st.integers(0, 4000)


def built(**members: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """An object with some of the members."""
    return st.fixed_dictionaries({}, optional=dict(members))


def resources(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.dictionaries(
        st.sampled_from(("cpu", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")), values
    )


cpu_lists = st.sampled_from(("", "0-3", "4,5-6", "7", "9-12", "0-99999", "a", "3-1"))
caches = st.lists(
    built(cacheID=whole, range=st.lists(st.integers(-1, 101), max_size=3), percent=numbers),
    max_size=3,
)
shares = built(range=st.lists(st.integers(0, 100), max_size=3), percent=st.integers(-1, 101))
written = {
    RESOURCE_STATUS: built(
        cpuset=cpu_lists | plain,
        numaNodeResources=st.lists(
            built(node=st.integers(-1, 3) | plain, resources=resources(amounts)), max_size=3
        )
        | plain,
    ),
    EXTENDED_SPEC: built(
        containers=st.dictionaries(
            st.sampled_from(("a", "b", "")),
            built(requests=resources(whole | amounts), limits=resources(whole | amounts)) | plain,
            max_size=3,
        )
    ),
    CPU_QOS: built(enable=st.booleans() | plain, groupIdentity=st.integers(-3, 4) | plain),
    RESCTRL: built(
        llc=built(schemata=shares | plain, schemataPerCache=caches | plain),
        mb=built(schemata=shares | plain, schemataPerCache=caches | plain),
    ),
    OOM_SPEC: st.dictionaries(st.sampled_from(("a", "b")), st.integers(-1001, 1001) | plain),
    OOM_DEFAULT: numbers | texts,
    ALLOCATED: st.dictionaries(
        st.sampled_from(("gpu", "rdma", "xpu", "fpga")) | texts,
        st.lists(built(minor=st.integers(-1, 9) | plain, id=texts, resources=plain), max_size=3)
        | plain,
        max_size=2,
    ),
}
annotated = st.fixed_dictionaries(
    {},
    optional={
        key: (value | plain).map(to_json) | texts | st.just("{" * 70000)
        for key, value in written.items()
    },
)
labels = st.fixed_dictionaries(
    {},
    optional={
        QOS_LABEL: st.sampled_from(QOS_CLASSES) | texts,
        GROUP_LABEL: texts,
        POLICY_LABEL: st.sampled_from(("exclusive", "none", "")) | texts,
    },
)
pods = st.builds(
    PodSandbox,
    id=st.just("5a4d"),
    uid=st.just(UID) | texts,
    labels=labels.map(lambda found: tuple(found.items())),
    annotations=annotated.map(lambda found: tuple(found.items())),
    cgroup_parent=st.sampled_from(tuple(PARENTS.values())) | texts,
)
sizes = st.none() | st.integers(-(2**63), 2**63 - 1)
requests = st.builds(
    HookRequest,
    stage=st.sampled_from(HookStage),
    pod=pods,
    container=st.none()
    | st.builds(ContainerSpec, name=st.sampled_from(("a", "b", "")) | texts, pod_uid=st.just(UID)),
    resources=st.builds(
        LinuxResources,
        shares=sizes,
        quota_us=sizes,
        period_us=sizes,
        cpus=st.none() | cpu_lists,
        memory_bytes=sizes,
    ),
)
classes = st.fixed_dictionaries(
    {},
    optional={
        f"{name}Class": st.just({"cpuQOS": {"enable": True, "schedIdle": 1}})
        for name in ("lsr", "ls", "be", "system")
    },
)
specs = st.builds(
    lambda policy, found, suppress: {
        "resourceQOSStrategy": {"policies": {"cpuPolicy": policy}, **found},
        "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": suppress},
    },
    st.sampled_from(("groupIdentity", "coreSched")),
    classes,
    st.sampled_from(("cpuset", "cfsQuota")),
)
kernels = st.builds(
    KernelFeatures,
    cgroup_version=st.sampled_from((None, 1, 2)),
    besteffort_cpus=st.sampled_from((None, frozenset(), frozenset({0, 1}))),
    bvt_file=st.booleans(),
    identity_switch=st.sampled_from((None, 0, 1)),
    identity_switch_present=st.booleans(),
    core_scheduling=st.booleans(),
)
nodes = st.builds(
    scene,
    slo=specs,
    kernel=kernels,
    groups=st.sampled_from(((), (f"koordlet-{UID}",))),
    ratio=st.sampled_from((None, "1.20", "0", "x")),
)
