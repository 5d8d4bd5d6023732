"""A vendor's settings reach its worker and its part in containers as they were written."""

from __future__ import annotations

import pytest
from msgspec import to_builtins

from agent.config.reference import setting_entries
from agent.config.settings import settings_type
from agent.workers.load import load_vendors, vendor_settings
from agent.workers.process import WorkerSpec
from agent.workers.protocol import StartMessage, decode_request, encode_start
from agent.workers.worker import decode_vendor_settings
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.vendors import DESCRIPTIONS, decode, section

VENDORS = load_vendors()


@pytest.mark.parametrize("vendor", ["nvidia", "ascend", "cambricon"])
def test_each_mode_of_injection_can_be_set_and_is_chosen_by_the_device_plugin(vendor: str) -> None:
    rules = {entry.key: entry for entry in setting_entries(settings_type(DESCRIPTIONS))}
    choices = rules[f"discovery.{vendor}.injection"].rule.choices
    defaults = VENDORS[vendor].description.settings()
    for mode in rules["device_plugin.injection"].rule.choices:
        chosen = to_builtins(defaults.with_injection(mode))["injection"]
        assert chosen == (mode if mode in choices else "auto")


def test_settings_of_injection_reach_the_vendors_decision() -> None:
    written: dict[str, dict[str, object]] = {
        "nvidia": {"injection": "nodes", "preload": "file", "region": False},
        "rdma": {"memlock": False, "nccl_env": True},
    }
    own = vendor_settings(decode({"discovery": written}), VENDORS)
    for vendor, values in written.items():
        assert {name: getattr(own[vendor], name) for name in values} == values


RDMA: dict[str, object] = {
    "soft": True,
    "port_policy": "all",
    "expected_ports": [{"match": "mlx5_*", "ports": [1, 2]}],
    "vf_pools": [{"pf": "mlx5_0", "vfs": "0-3", "driver": "vfio-pci", "labels": {"a": "b"}}],
    "labels": [{"match": "pci0000:15", "labels": {"rail": "1"}}],
    "roles": [{"match": "0000:3b:00.0", "role": "storage"}],
}


def test_settings_of_rdma_reach_the_worker_as_they_were_written() -> None:
    settings = decode({"discovery": {"rdma": RDMA}})
    spec = WorkerSpec(vendor="rdma", settings=vendor_settings(settings, VENDORS)["rdma"])
    start = decode_request("rdma", encode_start("rdma", spec.settings, events=True))
    assert isinstance(start, StartMessage)
    received = decode_vendor_settings(start, RdmaVendor.description)
    assert isinstance(received, RdmaSettings)
    assert received == section(RdmaSettings, RDMA)
    assert received.expected_ports_of("0000:3b:00.0", None, "mlx5_7") == (1, 2)
    unset = RdmaSettings()
    assert all(getattr(received, name) != getattr(unset, name) for name in RDMA)


def test_settings_of_nvidia_reach_the_worker() -> None:
    nvidia = {
        "library_dirs": ["/opt/nv"],
        "driver_root": "/run/nv",
        "forget_after_s": 60.0,
        "partition_policy": "Honor",
        "partition_bandwidth": True,
        "fabric_must_be_ready": "off",
        "xids": {"ignore": [94, "119"], "fatal": [13]},
        "upstream_compatible": True,
    }
    own = vendor_settings(decode({"discovery": {"nvidia": nvidia}}), VENDORS)["nvidia"]
    result = to_builtins(own, builtin_types=())
    assert {name: result[name] for name in nvidia} == {
        **nvidia,
        "library_dirs": ("/opt/nv",),
        "xids": {"ignore": ("94", "119"), "fatal": ("13",)},
    }
