"""Series of what is wrong on the node, with the recommended action."""

from __future__ import annotations

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.device import Device, DevicePartition, Health, HealthState
from agent.snapshot.self_check import SelfCheck
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests import factory
from tests.factory import NOW_S
from tests.unit.runbook.test_problems import node

RENDERER = MetricsRenderer({}, runbook=build_runbook(load_vendors()))
XID = Health(state=HealthState.FAILED, reason="Xid95", message="uncontained")


def lines(*devices: Device, **parts: object) -> list[str]:
    page = RENDERER.render(node(*devices, **parts), NOW_S).decode()
    names = ("xpu_agent_problems{", "xpu_device_fault{")
    return [line for line in page.splitlines() if line.startswith(names)]


def test_a_well_node_has_no_problem_of_any_severity() -> None:
    assert [line.rpartition("severity=")[2] for line in lines(factory.gpu(0))] == [
        '"critical"} 0',
        '"warning"} 0',
        '"info"} 0',
    ]


def test_a_fault_has_class_reason_action_and_device() -> None:
    card = factory.gpu(1, health=XID)
    (fault,) = [line for line in lines(factory.gpu(0), card) if "fault" in line]
    assert fault.endswith(
        f'device="{card.key}",minor="1",uuid="{card.info.uuid}",class="memory",reason="Xid95",'
        'action="drain-and-reset",severity="critical"} 1'
    )


def test_a_fault_of_a_slice_names_the_slice_and_its_card() -> None:
    part = DevicePartition(uuid="MIG-1", profile="1g.10gb", health=XID)
    card = factory.gpu(0, partitions=(part,))
    (fault,) = [line for line in lines(card) if "fault" in line]
    assert f'device="{card.key}",minor="0",uuid="MIG-1"' in fault


def test_problems_of_the_agent_are_counted_and_are_no_fault_of_a_device() -> None:
    check = SelfCheck(name="lock", ok=False, reason="LockLost")
    found = lines(factory.gpu(0), checks=(check,))
    assert any(line.endswith('severity="critical"} 1') for line in found)
    assert not any("fault" in line for line in found)
