"""Device-info files, by which koord-device-daemon reports accelerators to koordlet.

Each regular file of a folder is a JSON array of devices. The agent reads files of other programs
and writes its own, which it never reads back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agent.snapshot.device import DeviceKind, VendorDevice

DIRECTORY = "/var/run/koordlet/xpu-device-infos"
OWN_FILE = "xpu-agent"
SOURCE_FILE_FACT = "device_info_file"  # of a device that such a file describes: the file's name
# facts of such a file, or of a maker's library: they count where sysfs says nothing
NUMA_NODE_FACT = "told_numa_node"
PCIE_ROOT_FACT = "told_pcie_root"

CUDA_VENDOR = "nvidia"

KIND_BY_VENDOR: Mapping[str, DeviceKind] = MappingProxyType(
    {"huawei": DeviceKind.NPU, "cambricon": DeviceKind.MLU, CUDA_VENDOR: DeviceKind.GPU}
)  # by vendor; all others are XPU


def is_cuda_device(device: VendorDevice) -> bool:
    """Return whether CUDA's own programs can use the device: MPS, HAMi-core, GPUDirect."""
    return device.vendor == CUDA_VENDOR and device.kind is DeviceKind.GPU
