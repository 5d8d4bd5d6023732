"""A container that was granted one card, and what a look at it brings back."""

from __future__ import annotations

from agent.snapshot.device import DeviceNode
from agent.snapshot.edits import (
    BIND_READ_ONLY,
    UNLIMITED_RLIMIT,
    ContainerEdits,
    DeviceNodeEdit,
    MountEdit,
    RlimitEdit,
)
from agent.verification.container_check import DeviceNodes
from agent.verification.observation import (
    ContainerObservation,
    DeviceRule,
    MountOrigin,
    ObservedMount,
    ObservedNode,
    ResourceLimit,
    RuntimeRecord,
)

CARD, OTHER = (195, 0), (195, 1)
CARDS = {CARD: "card-0", OTHER: "card-1"}
OWN = (DeviceNodes(name="card-0", nodes=(DeviceNode(path="/dev/nvidia0", major=195, minor=0),)),)
LIBRARY = "/usr/local/vgpu/libvgpu.so"
EDITS = ContainerEdits(
    nodes=(DeviceNodeEdit(host_path="/dev/nvidia0", path="/dev/nvidia0", major=195, minor=0),),
    env=(("CUDA_DEVICE_SM_LIMIT", "50"), ("LD_PRELOAD", LIBRARY)),
    mounts=(MountEdit(host_path=LIBRARY, path=LIBRARY, options=BIND_READ_ONLY),),
    rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=UNLIMITED_RLIMIT, hard=UNLIMITED_RLIMIT),),
)
DENIED = DeviceRule("a", None, None, "rwm", is_allowed=False)
MAY = DeviceRule("c", 195, 0, "rw")
ORIGIN = MountOrigin("254:0", LIBRARY)
RECORD = RuntimeRecord(
    env=(("PATH", "/bin"), *EDITS.env),
    mounts=((LIBRARY, LIBRARY),),
    nodes=(ObservedNode("/dev/nvidia0", "c", 195, 0),),
    rules=(DENIED, MAY),
    limits=(ResourceLimit("RLIMIT_MEMLOCK", UNLIMITED_RLIMIT, UNLIMITED_RLIMIT),),
)
MOUNT = ObservedMount(LIBRARY, ORIGIN, "ext4")
OBSERVATION = ContainerObservation(
    env=RECORD.env,
    mounts=(MOUNT,),
    nodes=RECORD.nodes,
    rules=(MAY,),
    limits=RECORD.limits,
    record=RECORD,
    origins={LIBRARY: (ORIGIN,)},
)
