"""Every default, and every value of a class that is switched off, as tables."""

from __future__ import annotations

import pytest

from agent.slo.overlay import overlay_spec
from agent.snapshot.slo import NODE_SLO_DEFAULTS, NodeSlo, ResourceQos
from tests.unit.slo.wire import at, nested, to_wire

CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass")

SPEC = {
    "resourceUsedThresholdWithBE": {
        "enable": False,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressMinPercent": None,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "memoryEvictLowerPercent": None,
        "memoryAllocatableEvictThresholdPercent": None,
        "memoryAllocatableEvictLowerPercent": None,
        "cpuEvictBESatisfactionUpperPercent": None,
        "cpuEvictBESatisfactionLowerPercent": None,
        "cpuEvictBEUsageThresholdPercent": None,
        "cpuEvictTimeWindowSeconds": None,
        "cpuEvictThresholdPercent": None,
        "cpuEvictLowerPercent": None,
        "cpuAllocatableEvictThresholdPercent": None,
        "cpuAllocatableEvictLowerPercent": None,
        "cpuEvictPolicy": "evictByRealLimit",
        "evictEnabledPriorityThreshold": None,
        "allocatableEvictPriorityThreshold": None,
    },
    "cpuBurstStrategy": {
        "policy": "none",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": -1,
        "sharePoolThresholdPercent": 50,
    },
    "systemStrategy": {
        "minFreeKbytesFactor": None,
        "watermarkScaleFactor": None,
        "memcgReapBackGround": None,
        "schedGroupIdentityEnabled": None,
        "schedIdleSaverWmark": None,
        "schedFeatures": {},
        "pageCacheLimitEnabled": None,
        "totalNetworkBandwidth": "0",
    },
    "hostApplications": [],
    "extensions": {},
}

# field: LSR, LS, BE, SYSTEM, switched off
CLASS_ROWS = {
    "cpuQOS.enable": (False, False, False, False, False),
    "cpuQOS.groupIdentity": (2, 2, -1, 0, 0),
    "cpuQOS.schedIdle": (0, 0, 0, 0, 0),
    "cpuQOS.coreExpeller": (True, True, False, False, False),
    "memoryQOS.enable": (False, False, False, False, False),
    "memoryQOS.minLimitPercent": (0, 0, 0, 0, 0),
    "memoryQOS.lowLimitPercent": (0, 0, 0, 0, 0),
    "memoryQOS.throttlingPercent": (0, 0, 0, 0, 0),
    "memoryQOS.wmarkRatio": (95, 95, 95, 0, 0),
    "memoryQOS.wmarkScalePermill": (20, 20, 20, 50, 50),
    "memoryQOS.wmarkMinAdj": (-25, -25, 50, 0, 0),
    "memoryQOS.priorityEnable": (0, 0, 0, 0, 0),
    "memoryQOS.priority": (0, 0, 0, 0, 0),
    "memoryQOS.oomKillGroup": (0, 0, 0, 0, 0),
    "memoryQOS.pageCacheEnable": (None, None, None, None, None),
    "memoryQOS.pageCacheLimitPercent": (None, None, None, None, None),
    "memoryQOS.pageCacheLimitSize": (None, None, None, None, None),
    "memoryQOS.pageCacheReclaimSync": (None, None, None, None, None),
    "resctrlQOS.enable": (False, False, False, False, False),
    "resctrlQOS.catRangeStartPercent": (0, 0, 0, 0, 0),
    "resctrlQOS.catRangeEndPercent": (100, 100, 30, 100, 100),
    "resctrlQOS.mbaPercent": (100, 100, 100, 100, 100),
    "networkQOS": (
        {
            "enable": False,
            "ingressRequest": 0,
            "ingressLimit": 0,
            "egressRequest": 0,
            "egressLimit": 0,
        },
    )
    * 5,
    "blkioQOS": (None, None, None, None, None),
}
OFF = 4  # the column


@pytest.mark.parametrize("part", SPEC)
def test_the_default_of_every_part_is_that_of_the_table(part: str) -> None:
    assert to_wire(NODE_SLO_DEFAULTS)[part] == SPEC[part]


@pytest.mark.parametrize("field", CLASS_ROWS)
@pytest.mark.parametrize("column", range(4), ids=CLASSES)
def test_the_default_of_every_class_is_that_of_the_table(column: int, field: str) -> None:
    before_switches = to_wire(NodeSlo(resource_qos=ResourceQos()))
    one = before_switches["resourceQOSStrategy"][CLASSES[column]]
    assert at(one, field) == CLASS_ROWS[field][column]


@pytest.mark.parametrize("field", CLASS_ROWS)
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_is_switched_off_has_the_values_of_switched_off(name: str, field: str) -> None:
    one = to_wire(overlay_spec({}).slo)["resourceQOSStrategy"][name]
    assert at(one, field) == CLASS_ROWS[field][OFF]


@pytest.mark.parametrize("part", ["cpuQOS", "memoryQOS", "resctrlQOS"])
@pytest.mark.parametrize("column", range(3), ids=CLASSES[:3])
def test_switching_a_part_on_gives_the_class_its_defaults(column: int, part: str) -> None:
    path = f"resourceQOSStrategy.{CLASSES[column]}.{part}"
    one = at(to_wire(overlay_spec(nested(f"{path}.enable", True)).slo), path)
    expected = {
        field.partition(".")[2]: row[column]
        for field, row in CLASS_ROWS.items()
        if field.startswith(f"{part}.")
    }
    assert one == {**expected, "enable": True}


@pytest.mark.parametrize("name", CLASSES[:3])
@pytest.mark.parametrize(
    ("field", "value", "off"),
    [
        ("cpuQOS.groupIdentity", 1, 0),
        ("memoryQOS.throttlingPercent", 80, 0),
        ("memoryQOS.wmarkScalePermill", 10, 50),
        ("memoryQOS.pageCacheLimitPercent", 40, None),
        ("resctrlQOS.mbaPercent", 50, 100),
    ],
)
def test_values_of_a_part_that_is_off_have_no_effect(
    name: str, field: str, value: int, off: int | None
) -> None:
    path = f"resourceQOSStrategy.{name}"
    slo = to_wire(overlay_spec(nested(f"{path}.{field}", value)).slo)
    assert at(slo, f"{path}.{field}") == off


def test_switches_do_not_touch_the_system_class_block_devices_and_network() -> None:
    inputs = {
        "cpuQOS": {"groupIdentity": 1},
        "memoryQOS": {"wmarkRatio": 7},
        "resctrlQOS": {"mbaPercent": 60},
        "networkQOS": {"egressLimit": 40},
        "blkioQOS": {"blocks": [{"name": "sda", "ioCfg": {"readIOPS": 9}}]},
    }
    slo = overlay_spec({"resourceQOSStrategy": {"systemClass": inputs, "lsClass": inputs}}).slo
    system, ls = slo.resource_qos.system_class, slo.resource_qos.ls_class
    assert (system.cpu.group_identity, system.memory.wmark_ratio) == (1, 7)
    assert (system.resctrl.mba_percent, system.network.egress_limit) == (60, 40)
    assert (ls.network.egress_limit, ls.cpu.group_identity) == (40, 0)
    assert ls.blkio == system.blkio
    assert ls.blkio is not None


def test_policies_are_group_identity_and_tc() -> None:
    assert to_wire(NODE_SLO_DEFAULTS)["resourceQOSStrategy"]["policies"] == {
        "cpuPolicy": "groupIdentity",
        "netQOSPolicy": "tc",
    }


@pytest.mark.parametrize("spec", [None, {}, {"resourceUsedThresholdWithBE": None}])
def test_without_a_spec_the_defaults_stand(spec: object) -> None:
    result = overlay_spec(spec)
    assert result.slo == NODE_SLO_DEFAULTS
    assert (result.refused, result.refused_count, result.unknown_fields) == ((), 0, 0)


def test_lower_limits_that_are_not_given_are_two_below_their_threshold() -> None:
    assert NODE_SLO_DEFAULTS.thresholds.memory_evict_until_percent == 68
    assert NODE_SLO_DEFAULTS.thresholds.cpu_evict_until_percent is None
    thresholds = overlay_spec(
        {
            "resourceUsedThresholdWithBE": {
                "cpuEvictThresholdPercent": 90,
                "memoryEvictThresholdPercent": 60,
            }
        }
    ).slo.thresholds
    assert (thresholds.cpu_evict_until_percent, thresholds.memory_evict_until_percent) == (88, 58)
    lower = overlay_spec(
        nested("resourceUsedThresholdWithBE", {"memoryEvictLowerPercent": 50})
    ).slo.thresholds
    assert lower.memory_evict_until_percent == 50
