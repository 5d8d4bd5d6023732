"""Pods with grants of each vendor: what is granted is inside, and nothing else is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.containerd.agent_side import scene
from tests.containerd.agent_side.process import Agent, begun
from tests.containerd.agent_side.scene import PF, VFS, entry, grant
from tests.containerd.runtime.inside import (
    NOTHING,
    ContainerView,
    look,
    opening,
    opening_made,
    tell,
)
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd


@pytest.fixture(scope="module")
def agent(runtime: Containerd) -> Iterator[Agent]:
    with begun(runtime) as started:
        yield started


@pytest.fixture(scope="module")
def plain(runtime: Containerd, agent: Agent) -> ContainerView:
    """A container of a pod that was granted nothing, while the agent is there."""
    assert agent.until(lambda now: now.state == "synchronized")
    return look(runtime.cri, Pod(runtime).run().start())


@dataclass(frozen=True)
class Case:
    """A grant, and what it means inside. Nodes are their numbers by path below /dev."""

    annotations: Mapping[str, str]
    nodes: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    handler: str = ""
    denied: tuple[tuple[int, int], ...] = ()  # of others, of the same maker
    missing: tuple[str, ...] = ()  # what the look from the host finds missing


CONTROL = {
    "nvidiactl": "195:255",
    "nvidia-uvm": "511:0",
    "nvidia-uvm-tools": "511:1",
    "nvidia-modeset": "195:254",
}
MANAGERS = {"davinci_manager": "237:0", "devmm_svm": "237:1", "hisi_hdc": "237:2"}
CM = {"infiniband/rdma_cm": "10:240"}
RDMA = {"minor": 0, "id": PF, "resources": {"koordinator.sh/rdma": 1}}
REGION = "/usr/local/vgpu/{uid}_main.cache"
CASES = {
    "a whole card": Case(
        grant(entry(0, "GPU-0")),
        nodes={**CONTROL, "nvidia0": "195:0"},
        denied=((195, 1), (195, 3), (236, 21)),
    ),
    "two cards": Case(
        grant(entry(2, "GPU-2"), entry(0, "GPU-0")),
        nodes={**CONTROL, "nvidia0": "195:0", "nvidia2": "195:2"},
        denied=((195, 1), (195, 3)),
    ),
    "a MIG slice": Case(
        grant(entry(3, "MIG-00000001")),
        nodes={
            **CONTROL,
            "nvidia3": "195:3",
            "nvidia-caps/nvidia-cap30": "236:30",
            "nvidia-caps/nvidia-cap31": "236:31",
        },
        denied=((236, 21), (236, 22), (195, 0)),
    ),
    "a share by HAMi-core": Case(
        grant(entry(1, "GPU-1", core=50, memory="40Gi", ratio=50)),
        labels=scene.HAMI,
        nodes={**CONTROL, "nvidia1": "195:1"},
        env={
            "CUDA_DEVICE_MEMORY_LIMIT": str(40 << 30),
            "CUDA_DEVICE_SM_LIMIT": "50",
            "LD_PRELOAD": scene.LIBRARY,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": REGION,
        },
        mounts={
            "/tmp/vgpulock": "/vgpulock rw",
            "/usr/local/vgpu": "/vgpu/containers/{uid}_main rw",
            scene.LIBRARY: "/vgpu/libvgpu.so ro",
        },
        denied=((195, 0),),
    ),
    "a card by the maker's own runtime": Case(
        grant(entry(2, "GPU-2"), entry(0, "GPU-0")),
        handler="nvidia",
        env={"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"},
        denied=((195, 0), (195, 1)),
        # this handler is a plain runc: it does not read the variable
        missing=tuple(
            f"0000:1{minor}:00.0 is not there: no node is c 195:{minor}" for minor in (0, 2)
        ),
    ),
    "a chip": Case(
        grant(entry(0, "DIE-0")),
        nodes={**MANAGERS, "davinci0": "238:0"},
        env={"ASCEND_VISIBLE_DEVICES": "0"},
        denied=((238, 1), (238, 100)),
    ),
    "a vNPU": Case(
        grant(entry(1, "vnpu-100")),
        nodes={**MANAGERS, "davinci100": "238:100"},
        env={"ASCEND_VISIBLE_DEVICES": "100", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"},
        denied=((238, 0), (238, 1)),
    ),
    "an MLU": Case(grant(entry(1, "MLU-1")), nodes={"cambricon_dev1": "239:1"}, denied=((239, 0),)),
    "an RDMA card": Case(
        grant(rdma=[RDMA]),
        nodes={**CM, "infiniband/uverbs0": "231:192"},
        env={
            "XPU_RDMA_DEVICES": "mlx5_0",
            "XPU_RDMA_PCI": PF,
            "PCIDEVICE_KOORDINATOR_SH_RDMA": PF,
        },
        denied=((231, 193), (231, 194)),
    ),
    "a virtual function": Case(
        grant(rdma=[{**RDMA, "extension": {"vfs": [{"busID": VFS[1]}]}}]),
        nodes={**CM, "infiniband/uverbs2": "231:194"},
        env={
            "XPU_RDMA_DEVICES": "mlx5_2",
            "XPU_RDMA_PCI": VFS[1],
            "PCIDEVICE_KOORDINATOR_SH_RDMA": VFS[1],
        },
        denied=((231, 192), (231, 193)),
    ),
    "a card and a virtual function": Case(
        grant(entry(0, "GPU-0"), rdma=[{**RDMA, "extension": {"vfs": [{"busID": VFS[0]}]}}]),
        nodes={**CONTROL, **CM, "nvidia0": "195:0", "infiniband/uverbs1": "231:193"},
        env={
            "XPU_RDMA_DEVICES": "mlx5_1",
            "XPU_RDMA_PCI": VFS[0],
            "PCIDEVICE_KOORDINATOR_SH_RDMA": VFS[0],
        },
        denied=((195, 1), (231, 192)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_granted_is_inside_and_nothing_else(
    runtime: Containerd, agent: Agent, plain: ContainerView, name: str
) -> None:
    case = CASES[name]
    pod = Pod(runtime, case.annotations, case.labels, handler=case.handler).run()
    container = pod.start(env={"OWN": "kept"})
    observations = look(runtime.cri, container).beyond(plain)
    tell(name, observations)
    uid = pod.uid
    assert observations == ContainerView(
        env={"OWN": "kept", **{key: value.format(uid=uid) for key, value in case.env.items()}},
        nodes={f"/dev/{path}": f"{numbers} 666" for path, numbers in case.nodes.items()},
        mounts={path: text.format(uid=uid) for path, text in case.mounts.items()},
        memlock="unlimited" if scene.may_raise_limits() and "rdma" in str(case.env) else "",
        cpus="",
    )
    for path, how in itertools.product(case.nodes, ("<", ">>")):
        assert opening(runtime.cri, container, f"/dev/{path}", how) == "allowed"
    for numbers in case.denied:
        assert opening_made(runtime.cri, container, *numbers) == "denied"
    proof = agent.proof(container)
    assert (proof.verdict, proof.way) == ("missing" if case.missing else "verified", "nri")
    assert sorted(proof.details) == list(case.missing)


def test_every_container_of_a_pod_has_the_grant_and_other_pods_have_nothing(
    runtime: Containerd, agent: Agent, plain: ContainerView
) -> None:
    pod = Pod(runtime, grant(entry(0, "GPU-0"))).run()
    first, second = pod.start("prepare"), pod.start("work")
    for container in (first, second):
        assert "/dev/nvidia0" in look(runtime.cri, container).beyond(plain).nodes
    other = Pod(runtime).run().start()
    assert look(runtime.cri, other).beyond(plain) == NOTHING
    assert opening_made(runtime.cri, other, 195, 0) == "denied"
    assert other not in agent.until(lambda now: other in now.containers).proofs


def test_a_pods_own_library_is_preloaded_beside_that_of_its_share(
    runtime: Containerd, agent: Agent
) -> None:
    shared = grant(entry(1, "GPU-1", core=30, memory="8Gi", ratio=10))
    pod = Pod(runtime, shared, scene.HAMI).run()
    container = pod.start(env={"LD_PRELOAD": "/own.so"})
    view = look(runtime.cri, container)
    assert view.env["LD_PRELOAD"] == f"/own.so:{scene.LIBRARY}"
    assert agent.proof(container).verdict == "verified"


@pytest.mark.skipif(
    not scene.may_raise_limits(), reason="no CAP_SYS_RESOURCE: nobody here may raise limits"
)
def test_memory_may_be_locked_without_limit_where_rdma_is_granted(
    runtime: Containerd, agent: Agent
) -> None:
    container = Pod(runtime, grant(rdma=[RDMA])).run().start()
    assert look(runtime.cri, container).memlock == "unlimited"
    assert agent.proof(container).verdict == "verified"
