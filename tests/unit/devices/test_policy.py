"""Settings of the health machine: whose value counts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from agent.config.sources import decode_settings
from agent.devices.vendor_health import resolve_policy
from agent.errors import BadConfig
from agent.snapshot.settings import HealthOverrides, HealthPolicy
from tests.vendors import DESCRIPTIONS

OVERRIDES = {one.name: one.health for one in DESCRIPTIONS}


def policy(vendor: str, **health: Any) -> HealthPolicy:
    overrides = OVERRIDES.get(vendor, HealthOverrides())
    return resolve_policy(decode_settings({"health": health}).health, vendor, overrides)


def test_a_vendor_that_nobody_lists_has_the_sections_values() -> None:
    assert policy("x") == HealthPolicy()
    assert policy("x", clean_probes=7, failed_looks=2) == HealthPolicy(
        clean_probes=7, failed_looks=2
    )


@pytest.mark.parametrize("vendor", ["nvidia", "ascend", "cambricon", "rdma"])
def test_the_vendors_overrides_precede_the_section(vendor: str) -> None:
    result = policy(vendor, clean_probes=9, flap_hold_s=60)
    desired = OVERRIDES[vendor].values()
    assert desired
    assert {name: getattr(result, name) for name in desired} == desired
    assert result.flap_hold_s == 60


def test_a_row_for_the_vendor_counts_before_all() -> None:
    rows = [{"vendor": "nvidia", "clean_s": 5}, {"vendor": "rdma", "clean_probes": "4"}]
    assert (policy("nvidia", vendors=rows).clean_s, policy("nvidia").clean_s) == (5.0, 60.0)
    assert policy("rdma", vendors=rows).clean_probes == 4
    assert policy("x", vendors=rows) == HealthPolicy()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"clean_s": 5}, "health.vendors[0].vendor: must name a vendor"),
        ({"vendor": ""}, "health.vendors[0].vendor: must name a vendor"),
        ({"vendor": "nvidia", "clean": 5}, "health.vendors[0].clean: unknown key"),
        ({"vendor": "nvidia", "look_again_s": 5}, "health.vendors[0].look_again_s: unknown key"),
        ({"vendor": "nvidia", "clean_s": -1}, "health.vendors[0].clean_s: -1 is not in 0 to 86400"),
        ({"vendor": "nvidia", "clean_probes": 1.5}, "must be a whole number"),
    ],
)
def test_a_row_that_is_none_is_refused_by_its_key(row: dict[str, Any], told: str) -> None:
    with pytest.raises(BadConfig) as refusal:
        decode_settings({"health": {"vendors": [row]}})
    assert told in str(refusal.value)
