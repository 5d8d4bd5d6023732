"""Device-info files: how koord-device-daemon tells koordlet of accelerators, both ways.

Each regular file of a folder is a JSON array of devices. We read those of others and write one of
our own, which is never read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agent.model.device import DeviceKind

DIRECTORY = "/var/run/koordlet/xpu-device-infos"
OWN_FILE = "xpu-agent"
FILE_FACT = "device_info_file"  # of a device that such a file describes: the file's name
# facts of such a file, or of a maker's library: they count where sysfs says nothing
NODE_FACT = "told_numa_node"
ROOT_FACT = "told_pcie_root"

KINDS: Mapping[str, DeviceKind] = MappingProxyType(
    {"huawei": DeviceKind.NPU, "cambricon": DeviceKind.MLU, "nvidia": DeviceKind.GPU}
)  # by vendor; all others are XPU
