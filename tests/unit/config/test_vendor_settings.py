"""A vendor's settings reach its worker and its part in containers as they were written."""

from __future__ import annotations

import msgspec
import pytest

from agent.config.reference import setting_entries
from agent.config.settings import settings_type
from agent.containers.devices import UNALLOCATED
from agent.workers.load import load_vendors, vendor_settings
from agent.workers.process import WorkerSpec
from agent.workers.protocol import StartMessage, decode_request, encode_start
from agent.workers.worker import decode_vendor_settings
from plugins.shared.injection import decode_policy
from plugins.vendors.ascend.injection import AscendPolicy
from plugins.vendors.cambricon.injection import CambriconPolicy
from plugins.vendors.nvidia.injection.edits import NvidiaPolicy
from plugins.vendors.rdma.injection import RdmaPolicy
from plugins.vendors.rdma.settings import decode_rdma_settings
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.vendors import DESCRIPTIONS, decode

VENDORS = load_vendors()

POLICIES: dict[str, type[msgspec.Struct]] = {
    "nvidia": NvidiaPolicy,
    "ascend": AscendPolicy,
    "cambricon": CambriconPolicy,
    "rdma": RdmaPolicy,
}


@pytest.mark.parametrize("vendor", POLICIES)
def test_each_choice_of_injection_can_be_set_and_is_taken(vendor: str) -> None:
    """What decides for all vendors, `ungranted`, is a setting of the hooks."""
    policy, rules = (
        POLICIES[vendor],
        {entry.key: entry for entry in setting_entries(settings_type(DESCRIPTIONS))},
    )
    for field in policy.__struct_fields__:
        if field == UNALLOCATED:
            choices = rules["hooks.ungranted"].rule.choices
        else:
            entry = rules[f"discovery.{vendor}.{field}"]
            assert getattr(policy(), field) == entry.default
            choices = entry.rule.choices
        for choice in choices:
            assert getattr(decode_policy({field: choice}, policy, vendor), field) == choice


def test_settings_of_injection_reach_the_vendors_decision() -> None:
    written: dict[str, dict[str, object]] = {
        "nvidia": {"injection": "nodes", "preload": "file", "region": False},
        "rdma": {"memlock": False, "nccl_env": True},
    }
    own = vendor_settings(decode({"discovery": written}), VENDORS)
    for vendor, values in written.items():
        found = decode_policy(msgspec.structs.asdict(own[vendor]), POLICIES[vendor], vendor)
        assert {name: getattr(found, name) for name in values} == values


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
    found = decode_rdma_settings(msgspec.structs.asdict(received))
    assert found == decode_rdma_settings(RDMA)
    assert found.expected_ports_of("0000:3b:00.0", None, "mlx5_7") == (1, 2)
    unset = decode_rdma_settings({})
    assert all(getattr(found, name) != getattr(unset, name) for name in RDMA)


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
    found = msgspec.to_builtins(own, builtin_types=())
    assert {name: found[name] for name in nvidia} == {
        **nvidia,
        "library_dirs": ("/opt/nv",),
        "xids": {"ignore": ("94", "119"), "fatal": ("13",)},
    }
