"""A container that was granted one card, and what a look at it brings back."""

from __future__ import annotations

from agent.model.device import DeviceNode
from agent.model.grant.edits import (
    BIND_READ_ONLY,
    UNLIMITED,
    ContainerEdits,
    MountEdit,
    NodeEdit,
    RlimitEdit,
)
from agent.proof.evidence import (
    Evidence,
    Limit,
    MountFound,
    NodeFound,
    Origin,
    Record,
    Rule,
)
from agent.proof.judge import DeviceNodes

CARD, OTHER = (195, 0), (195, 1)
CARDS = {CARD: "card-0", OTHER: "card-1"}
OWN = (DeviceNodes(name="card-0", nodes=(DeviceNode(path="/dev/nvidia0", major=195, minor=0),)),)
LIBRARY = "/usr/local/vgpu/libvgpu.so"
EDITS = ContainerEdits(
    nodes=(NodeEdit(host_path="/dev/nvidia0", path="/dev/nvidia0", major=195, minor=0),),
    env=(("CUDA_DEVICE_SM_LIMIT", "50"), ("LD_PRELOAD", LIBRARY)),
    mounts=(MountEdit(host_path=LIBRARY, path=LIBRARY, options=BIND_READ_ONLY),),
    rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=UNLIMITED, hard=UNLIMITED),),
)
DENIED = Rule("a", None, None, "rwm", allow=False)
MAY = Rule("c", 195, 0, "rw")
ORIGIN = Origin("254:0", LIBRARY)
RECORD = Record(
    env=(("PATH", "/bin"), *EDITS.env),
    mounts=((LIBRARY, LIBRARY),),
    nodes=(NodeFound("/dev/nvidia0", "c", 195, 0),),
    rules=(DENIED, MAY),
    limits=(Limit("RLIMIT_MEMLOCK", UNLIMITED, UNLIMITED),),
)
MOUNT = MountFound(LIBRARY, ORIGIN, "ext4")
SEEN = Evidence(
    env=RECORD.env,
    mounts=(MOUNT,),
    nodes=RECORD.nodes,
    rules=(MAY,),
    limits=RECORD.limits,
    record=RECORD,
    origins={LIBRARY: (ORIGIN,)},
)
