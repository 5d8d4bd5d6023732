"""Keys by their names in the ledger."""

from __future__ import annotations

from agent.cgroup.device_values import DEVICE_FILES, DEVICE_NUMBER
from agent.cgroup.host_settings import find_setting
from agent.cgroup.keys import KEYS_BY_NAME, CgroupKey, device_key


def find_key(name: str) -> CgroupKey | None:
    """Return the key of a name in the ledger; `None`: this version of the agent has no such key."""
    file, _, device = name.partition(" ")
    if file in DEVICE_FILES and DEVICE_NUMBER.fullmatch(device):
        return device_key(DEVICE_FILES[file], device)
    return KEYS_BY_NAME.get(name) or find_setting(name)
