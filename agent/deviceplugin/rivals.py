"""Other vendors' device plug-ins: two that serve one resource would take turns at it."""

from __future__ import annotations

from collections.abc import Iterable

OWN = "xpu-agent-"  # what our sockets' names start with
# names of sockets by who serves them, as `device_plugin.vendors` calls the hardware
_STARTS = {
    "nvidia": ("nvidia-", "nvidiaGPU-", "nvidia.sock"),  # their own, Google's, their oldest
    "ascend": ("Ascend", "ascend", "davinci", "npu.", "huawei"),
    "cambricon": ("cambricon",),
    "rdma": (),
}


def rival(vendor: str, resource: str, sockets: Iterable[str]) -> str:
    """Return the socket of another plug-in that serves this resource; empty if there is none.

    `sockets` are the names of those in the kubelet's folder that somebody answers on.
    """
    domain, _, own_name = resource.partition("/")
    # a plug-in of NICs names its sockets so, whoever made the NICs
    full_name = f"{domain}_{own_name}.sock"
    starts = _STARTS.get(vendor, ())
    for name in sorted(sockets):
        if not name.endswith(".sock") or name.startswith(OWN) or name == "kubelet.sock":
            continue
        if name in (f"{own_name}.sock", full_name):
            return name
        if name.startswith(starts) and not name.startswith(f"{domain}_"):
            return name
    return ""
