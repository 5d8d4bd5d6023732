"""Settings that only a vendor understands are refused by the agent all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agent.errors import BadConfig
from agent.workers.load import load_enabled_vendors
from tests.process.agent import run_agent
from tests.vendors import decode

WRONG = [
    ({"labels": [{"mach": "x", "labels": {}}]}, "discovery.rdma.labels[0]: unknown key 'mach'"),
    ({"vf_pools": [{"pf": "mlx5_0", "vfs": "a"}]}, "discovery.rdma.vf_pools[0].vfs"),
    ({"expected_ports": [{"match": "mlx5_0", "ports": [0]}]}, "expected_ports[0].ports"),
    ({"roles": [{"match": "mlx5_0", "role": "both"}]}, "discovery.rdma.roles[0].role"),
]


@pytest.mark.parametrize(("rdma", "message"), WRONG)
def test_a_rule_that_the_vendor_cannot_use_is_refused(
    rdma: dict[str, object], message: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        load_enabled_vendors(decode({"discovery": {"rdma": rdma}}))
    assert message in str(refused.value)


def test_a_disabled_vendor_is_not_queried() -> None:
    rdma = {"vendors": {"rdma": "off"}, "rdma": WRONG[0][0]}
    assert "rdma" not in load_enabled_vendors(decode({"discovery": rdma}))


@pytest.mark.parametrize(
    "discovery", [{"rdma": WRONG[0][0]}, {"numa_overrides": [{"match": "0000:3b:00.0"}]}]
)
def test_a_check_of_the_file_finds_it(tmp_path: Path, discovery: dict[str, object]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"discovery": discovery}))
    process = run_agent("config", "check", str(file))
    assert (process.returncode, process.stdout) == (1, "")
    assert len(process.stderr.splitlines()) == 1
    used = run_agent("devices", "--config", str(file))
    assert used.returncode == 2
    assert "discovery." in used.stderr
