"""The nodes of the demonstration: recorded hosts, one of them with a card that fails."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import msgspec
import yaml

from plugins.vendors.nvidia.health.xid import xid_message
from tests.apiserver import node

HOSTS = Path(__file__).parents[2] / "fixtures" / "hosts"
XID = 95  # uncontained memory error: the card has to be reset
LAST_FAULT_S = 24 * 3600.0


class DemoNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node and the recording that its agent runs on."""

    name: str
    recording: str  # folder below fixtures/hosts
    about: str  # for people
    cpu: str = "64"
    memory: str = "512Gi"

    @property
    def machine_id(self) -> str:
        """Return the machine id of the host and of its Node."""
        return uuid.uuid5(uuid.NAMESPACE_DNS, self.name).hex

    def as_object(self) -> dict[str, object]:
        """Return the Node as its kubelet registers it."""
        body = node(self.name, machine_id=self.machine_id)
        amounts = {"cpu": self.cpu, "memory": self.memory, "pods": "110"}
        body["status"] |= {"capacity": dict(amounts), "allocatable": dict(amounts)}
        return body


FAILING_NODE = "h100-0"
FAILING_MINOR = 2
FAILING_BUS_ID = "0000:53:00.0"
NODES = (
    DemoNode(
        name=FAILING_NODE, recording="qemu-4numa-8xh100", about="8 x NVIDIA H100, 4 soft-RoCE NICs"
    ),
    DemoNode(
        name="atlas-0", recording="atlas-910b3x8", about="8 x Ascend 910B3, one of them broken"
    ),
    DemoNode(name="mlu-0", recording="mlu370-x4-8", about="8 x Cambricon MLU370-X4"),
)


def write_hosts(folder: Path, first_fault_s: float, period_s: float) -> dict[str, Path]:
    """Copy the host of each node to `folder`, with the machine id of its Node; return them.

    The card fails `first_fault_s` after its agent has opened the vendor's session, and then once
    in each `period_s`.
    """
    hosts = {}
    for one in NODES:
        hosts[one.name] = folder / one.recording
        shutil.copytree(HOSTS / one.recording, hosts[one.name])
        with (hosts[one.name] / "host.txt").open("a") as host:
            host.write(f"\n[/etc]\nmachine-id = {one.machine_id}\n")
    with (hosts[FAILING_NODE] / "tapes" / "nvidia.jsonl").open("a") as tape:
        at_s = first_fault_s
        while at_s < LAST_FAULT_S:
            tape.write(json.dumps(_fault_line(at_s)) + "\n")
            at_s += period_s
    return hosts


def _fault_line(at_s: float) -> dict[str, object]:
    event = {
        "key": FAILING_BUS_ID,
        "reason": f"Xid{XID}",
        "message": xid_message(XID),
        "state": "failed",
    }
    return {"method": "events", "at_s": at_s, "answer": [event]}


def agent_settings(clean_s: float) -> str:
    """Return the settings of all agents: a failed card is tried again soon, however often."""
    soon = {"vendor": "nvidia", "clean_probes": 3, "clean_s": clean_s, "flap_changes": 1000}
    settings = {
        "api": {"node_condition": True, "node_labels": True},
        "discovery": {"rdma": {"soft": True}},  # the NICs of the first host are soft-RoCE devices
        "health": {"look_again_s": 1, "vendors": [soon]},
        "kubelet": {"enabled": False},
    }
    return yaml.safe_dump(settings)


def scheduler_settings() -> str:
    """Return the settings of xpu-scheduler: shares go to cards in use, sums into the Nodes."""
    settings = {
        "leader_election": {"namespace": "kube-system"},
        "publish_node_resources": True,
        "scoring": {"type": "MostAllocated"},
    }
    return yaml.safe_dump(settings)
