"""No setting is accepted and then forgotten: each is read, and vendors get theirs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.config.decode import settings_from
from agent.config.load import entries
from agent.hooks.devices import UNGRANTED
from agent.node.vendors import vendor_settings
from agent.probe.process.spec import WorkerSpec
from agent.probe.wire import Start, decode_request, encode_start
from plugins.injection.ascend.edits import AscendPolicy
from plugins.injection.cambricon import CambriconPolicy
from plugins.injection.nvidia.edits import NvidiaPolicy
from plugins.injection.policy import policy_of
from plugins.injection.rdma import RdmaPolicy
from plugins.vendors import BUILTIN
from plugins.vendors.rdma.settings import decode

ROOT = Path(__file__).parents[3]
KEYS = [entry.key for entry in entries()]


def sources(*folders: str) -> str:
    """The code that may read settings; what only defines them is no reader."""
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return "\n".join(file.read_text() for file in files if "config" not in file.parts)


@pytest.mark.parametrize("key", [key for key in KEYS if key.count(".") == 1])
def test_the_agent_reads_each_of_its_settings(key: str) -> None:
    section, name = key.split(".")
    known_as = ("health", "policy") if section == "health" else (section,)
    assert any(f"{owner}.{name}" in sources("agent") for owner in known_as)


POLICIES: dict[str, type[msgspec.Struct]] = {
    "nvidia": NvidiaPolicy,
    "ascend": AscendPolicy,
    "cambricon": CambriconPolicy,
    "rdma": RdmaPolicy,
}
OF_VENDORS = [key for key in KEYS if key.startswith("discovery.") and key.count(".") == 2]


@pytest.mark.parametrize("key", OF_VENDORS)
def test_each_vendor_reads_its_settings(key: str) -> None:
    _, vendor, name = key.split(".")
    if vendor == "vendors":
        assert name in dict(BUILTIN)
    else:
        policy = POLICIES.get(vendor)
        of_injection = policy is not None and name in policy.__struct_fields__
        assert of_injection or f'"{name}"' in sources("plugins")


@pytest.mark.parametrize("vendor", POLICIES)
def test_each_choice_of_injection_can_be_set_and_is_taken(vendor: str) -> None:
    """What decides for all vendors, `ungranted`, is a setting of the hooks."""
    policy, rules = POLICIES[vendor], {entry.key: entry for entry in entries()}
    for field in policy.__struct_fields__:
        if field == UNGRANTED:
            choices = rules["hooks.ungranted"].rule.choices
        else:
            entry = rules[f"discovery.{vendor}.{field}"]
            assert getattr(policy(), field) == entry.default
            choices = entry.rule.choices
        for choice in choices:
            assert getattr(policy_of({field: choice}, policy, vendor), field) == choice


def test_settings_of_injection_reach_the_vendors_decision() -> None:
    written: dict[str, dict[str, object]] = {
        "nvidia": {"injection": "nodes", "preload": "file", "region": False},
        "rdma": {"memlock": False, "nccl_env": True},
    }
    own = vendor_settings(settings_from({"discovery": written}))
    decode(own["rdma"])
    for vendor, values in written.items():
        found = policy_of(own[vendor], POLICIES[vendor], vendor)
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
    settings = settings_from({"discovery": {"rdma": RDMA}, "node": {"state_dir": "/var/lib/x"}})
    spec = WorkerSpec(vendor="rdma", settings=vendor_settings(settings)["rdma"])
    start = decode_request("rdma", encode_start("rdma", spec.settings, events=True))
    assert isinstance(start, Start)
    found = decode(start.settings)
    assert found == decode({**RDMA, "state_dir": "/var/lib/x"})
    assert found.expected("0000:3b:00.0", None, "mlx5_7") == (1, 2)
    unset = decode({"state_dir": "/var/lib/x"})
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
    own = vendor_settings(settings_from({"discovery": {"nvidia": nvidia}}))["nvidia"]
    found = msgspec.to_builtins(own, builtin_types=())
    assert {name: found[name] for name in nvidia} == {
        **nvidia,
        "library_dirs": ("/opt/nv",),
        "xids": {"ignore": ("94", "119"), "fatal": ("13",)},
    }
