"""What a container with eight cards gets: six variables, nine nodes, four mounts."""

from __future__ import annotations

from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.edits import ContainerEdits, DeviceNodeEdit, MountEdit

CARDS = 8
GIVEN = Adjustment(
    edits=ContainerEdits(
        env=tuple((f"XPU_VARIABLE_{i}", f"GPU-00000000-0000-4000-8000-{i:012d}") for i in range(6)),
        nodes=(
            *(
                DeviceNodeEdit(
                    host_path=f"/dev/nvidia{i}",
                    path=f"/dev/nvidia{i}",
                    major=195,
                    minor=i,
                    file_mode=0o666,
                )
                for i in range(CARDS)
            ),
            DeviceNodeEdit(host_path="/dev/nvidiactl", path="/dev/nvidiactl", major=195, minor=255),
        ),
        mounts=tuple(
            MountEdit(
                host_path=f"/usr/lib/lib{i}.so.1",
                path=f"/usr/lib/lib{i}.so.1",
                options=("bind", "ro", "rprivate"),
            )
            for i in range(4)
        ),
    ),
    resources=LinuxResources(cpus="0-7", shares=2048),
)
