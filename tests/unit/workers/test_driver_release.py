"""Which labels of the Node ask to release a driver."""

from __future__ import annotations

import pytest

from agent.workers.driver_release import OWN_LABEL, find_release_request
from plugins.vendors.nvidia.vendor import NvidiaVendor

STATE = "nvidia.com/gpu-driver-upgrade-state"
PLUGIN, CLIENT = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.client"
UPGRADE, MIG = "paused-for-driver-upgrade", "paused-for-mig-change"


@pytest.mark.parametrize(
    ("labels", "nvidia", "ascend"),
    [
        ({}, "", ""),
        ({OWN_LABEL: "nvidia"}, f"{OWN_LABEL}=nvidia", ""),
        ({OWN_LABEL: "ascend.nvidia"}, f"{OWN_LABEL}=ascend.nvidia", f"{OWN_LABEL}=ascend.nvidia"),
        ({OWN_LABEL: ""}, "", ""),
        ({OWN_LABEL: "nvidia-next"}, "", ""),
        ({f"{OWN_LABEL}.example.com": "nvidia"}, "", ""),
        # the upgrade controller of NVIDIA's operator, state by state
        ({STATE: "upgrade-required"}, "", ""),
        ({STATE: "cordon-required"}, "", ""),
        ({STATE: "wait-for-jobs-required"}, "", ""),
        ({STATE: "pod-deletion-required"}, f"{STATE}=pod-deletion-required", ""),
        ({STATE: "drain-required"}, f"{STATE}=drain-required", ""),
        ({STATE: "pod-restart-required"}, f"{STATE}=pod-restart-required", ""),
        ({STATE: "validation-required"}, "", ""),
        ({STATE: "uncordon-required"}, "", ""),
        ({STATE: "upgrade-done"}, "", ""),
        ({STATE: "upgrade-failed"}, "", ""),
        # its driver manager, which unloads the driver, and its MIG manager
        ({PLUGIN: "true", CLIENT: "true"}, "", ""),
        ({PLUGIN: UPGRADE, CLIENT: MIG}, f"{CLIENT}={MIG}, {PLUGIN}={UPGRADE}", ""),
        ({"nvidia.com/gpu.deploy": UPGRADE}, "", ""),
    ],
)
def test_labels_ask_to_release_the_driver_of_a_vendor(
    labels: dict[str, str], nvidia: str, ascend: str
) -> None:
    rules = NvidiaVendor.description.release_labels
    pairs = tuple(labels.items())
    assert find_release_request("nvidia", pairs, rules) == nvidia
    assert find_release_request("ascend", pairs, ()) == ascend


def test_a_message_names_a_few_of_many_labels() -> None:
    labels = tuple((f"nvidia.com/gpu.deploy.{number}", UPGRADE) for number in range(9))
    request = find_release_request("nvidia", labels, NvidiaVendor.description.release_labels)
    assert request.count(UPGRADE) == 3
