"""What the kubelet's way brings into a container, with and without CDI in the runtime.

No kubelet is here: the answer of `Allocate` is handed to the runtime as the kubelet does.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.allocator import Allocator
from agent.snapshot.edits import DeviceNodeEdit
from agent.workers.load import load_vendors
from proto.gen import cri_config_v1_pb2 as pb
from tests.containerd.agent_side import scene
from tests.containerd.runtime.inside import look, opening, tell
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd, cannot_run, containerd

LIBRARY, INSIDE = "libcuda.so", "/usr/lib/libcuda.so"


def on_host(folder: Path, node: DeviceNodeEdit) -> str:
    """Return where a device node is on this machine; it is made there, for no card is here."""
    path = folder / node.path.replace("/", "-")
    if not path.exists():
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(node.major, node.minor))
    return str(path)


def describe(runtime: Containerd) -> None:
    """Write the file of CDI names as the vendor's toolkit does: a node for a card, libraries."""
    card = DeviceNodeEdit(host_path="/dev/nvidia1", path="/dev/nvidia1", major=195, minor=1)
    node = {"path": card.path, "hostPath": on_host(runtime.folder, card), "permissions": "rwm"}
    library = runtime.folder / LIBRARY
    library.write_text("the driver's")
    mount = {"hostPath": str(library), "containerPath": INSIDE, "options": ["ro", "bind"]}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "GPU-1", "containerEdits": {"deviceNodes": [node]}}],
        "containerEdits": {"mounts": [mount], "env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    (runtime.cdi / "nvidia.json").write_text(json.dumps(spec))


@pytest.mark.parametrize("takes_cdi", [True, False])
def test_the_answer_of_allocate_brings_the_card_and_its_library_if_the_runtime_can(
    *, takes_cdi: bool
) -> None:
    if reason := cannot_run():
        pytest.skip(reason)
    with containerd(takes_cdi=takes_cdi) as runtime:
        describe(runtime)
        snapshot = scene.snapshot(1.0, memlock=False, cdi=runtime.cdi)
        deciding = Allocator(DevicePluginSettings(vendors=("nvidia",)), load_vendors())
        edits = deciding.allocate("nvidia.com/gpu", ("GPU-1",), snapshot).edits
        devices = [
            pb.Device(
                host_path=on_host(runtime.folder, node),
                container_path=node.path,
                permissions=node.permissions,
            )
            for node in edits.nodes
        ]
        pod = Pod(runtime).run()
        container = pod.start(devices=devices, cdi=edits.cdi)
        view = look(runtime.cri, container)
        tell(f"CDI {takes_cdi}", edits.cdi, view.nodes)
        assert edits.cdi == ("nvidia.com/gpu=GPU-1",)
        for node in edits.nodes:
            assert opening(runtime.cri, container, node.path, ">>") == "allowed"
        assert view.nodes["/dev/nvidia1"].split()[0] == "195:1"
        assert (INSIDE in view.mounts) is takes_cdi
        assert ("NVIDIA_VISIBLE_DEVICES" in view.env) is takes_cdi
