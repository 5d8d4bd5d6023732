"""Peer of `cluster.fault_to_ack`: asks every card each INTERVAL_S and replaces the whole Device.

`... INTERVAL NODE KUBECONFIG`. Each time one GET and one PUT, changed or not, as koordlet does;
it does none of what an agent does besides.
"""

from __future__ import annotations

import sys
import time

import pynvml
from kubernetes import client, config

from agent.kube.resources import DEVICES
from bench.node.naive_poller import RECOVERY_ACTION


def cards() -> list[dict[str, object]]:
    """Return all cards as a Device shows them."""
    result: list[dict[str, object]] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        card = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, memory = pynvml.nvmlDeviceGetUUID(card), pynvml.nvmlDeviceGetMemoryInfo(card)
        (action,) = pynvml.nvmlDeviceGetFieldValues(card, [RECOVERY_ACTION])
        well = action.nvmlReturn != 0 or action.value.uiVal == 0
        resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": memory.total}
        entry = {"type": "gpu", "minor": index, "id": uuid, "health": well, "resources": resources}
        result.append(entry)
    return result


def main() -> None:
    """Poll until killed."""
    interval_s, name, kubeconfig = float(sys.argv[1]), *sys.argv[2:4]
    pynvml.nvmlInit()
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call] # it is so
    objects = client.CustomObjectsApi()
    kind = (DEVICES.group, DEVICES.version, DEVICES.plural)
    while True:
        began_s = time.monotonic()
        cluster_custom_object = objects.get_cluster_custom_object(*kind, name)
        assert isinstance(cluster_custom_object, dict)
        device = {**cluster_custom_object, "spec": {"devices": cards()}}
        objects.replace_cluster_custom_object(*kind, name, device)
        time.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main()
