from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import BadConfig
from plugins.vendors.rdma.settings import DevicePattern, RdmaSettings
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.vendors import checked_settings

ADDRESS, ROOT, NAME = "0000:18:00.0", "pci0000:17", "mlx5_0"


def decoded(data: Mapping[str, object]) -> RdmaSettings:
    return checked_settings(RdmaVendor.description, RdmaSettings, data)


def test_no_settings_are_the_defaults() -> None:
    assert decoded({}) == RdmaSettings()


def test_everything_that_can_be_set() -> None:
    settings = decoded(
        {
            "soft": True,
            "port_policy": "all",
            "expected_ports": [{"match": "18:00.0", "ports": [2, 1]}],
            "vf_pools": [{"pf": "mlx5_*", "vfs": "0-2", "labels": {"pool": "fast"}}],
            "labels": [{"match": "pci0000:17", "labels": {"rail": "0"}}],
            "roles": [{"match": "0000:10-1f", "role": "storage"}],
        }
    )
    assert settings.expected_ports_of(ADDRESS, ROOT, NAME) == (1, 2)
    assert settings.pool_rules[0].indices == frozenset((0, 1, 2))
    assert settings.labels_of(ADDRESS, ROOT, NAME) == (
        ("rail", "0"),
        ("xpu-agent.io/role", "storage"),
    )
    assert settings.labels_of("0000:20:00.0", "pci0000:20", "mlx5_1") == ()


def test_of_two_labels_with_one_name_the_first_wins() -> None:
    rules = [{"match": "*", "labels": {"a": text}} for text in ("first", "second")]
    assert decoded({"labels": rules}).labels_of(ADDRESS, ROOT, NAME) == (("a", "first"),)


@pytest.mark.parametrize(
    ("text", "address", "root", "name", "fits"),
    [
        ("0000:18:00.0", ADDRESS, ROOT, NAME, True),
        ("0000:18:00.1", ADDRESS, ROOT, NAME, False),
        ("pci0000:17", ADDRESS, ROOT, NAME, True),
        ("pci0000:18", ADDRESS, ROOT, NAME, False),
        ("0000:10-1f", ADDRESS, ROOT, NAME, True),
        ("0000:19-1f", ADDRESS, ROOT, NAME, False),
        ("0001:10-1f", ADDRESS, ROOT, NAME, False),
        ("0000:10-1f", None, None, NAME, False),
        ("mlx5_*", ADDRESS, ROOT, NAME, True),
        ("rxe*", None, None, "rxe_eth0", True),
        ("mlx5_*", ADDRESS, ROOT, None, False),
    ],
)
def test_what_a_match_fits(
    text: str, address: str | None, root: str | None, name: str | None, fits: bool
) -> None:
    assert DevicePattern(text).fits(address, root, name) is fits


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"sofd": True}, "sofd"),
        ({"soft": 1}, "discovery.rdma.soft"),
        ({"port_policy": "some"}, "discovery.rdma.port_policy"),
        ({"expected_ports": {"match": "*"}}, "discovery.rdma.expected_ports"),
        ({"expected_ports": [{"match": "*", "ports": [0]}]}, "expected_ports[0].ports"),
        ({"expected_ports": [{"match": "*", "ports": [True]}]}, "expected_ports[0].ports"),
        ({"expected_ports": [{"match": "*", "ports": 1}]}, "expected_ports[0].ports"),
        ({"labels": [{"match": "*", "labels": {"a": 1}}]}, "labels[0].labels"),
        ({"labels": [{"match": "*"}]}, "labels[0].labels"),
        ({"labels": [{"match": "no/such:thing", "labels": {}}]}, "labels[0].match"),
        ({"labels": [{"labels": {}}]}, "labels[0].match"),
        ({"labels": ["x"]}, "discovery.rdma.labels"),
        ({"labels": [{"match": "*", "label": {}}]}, "labels[0]"),
        ({"roles": [{"match": "*", "role": "both"}]}, "roles[0].role"),
        ({"vf_pools": [{"pf": "*", "vfs": "3-1"}]}, "vf_pools[0].vfs"),
        ({"vf_pools": [{"pf": "*", "driver": 3}]}, "vf_pools[0].driver"),
        ({"vf_pools": [{}]}, "vf_pools[0].pf"),
        ({"vf_pools": [{"pf": "*"}] * 300}, "discovery.rdma.vf_pools"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_name_of_its_key(
    data: dict[str, object], key: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        decoded(data)
    assert key in str(refused.value)


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["match", "ports", "pf", "vfs", "driver", "labels", "role"]), inner
        ),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(list(RdmaSettings.__struct_fields__)), _VALUES))
def test_no_settings_raise_anything_else(data: dict[str, object]) -> None:
    try:
        settings = decoded(data)
    except BadConfig:
        return
    settings.labels_of(ADDRESS, ROOT, NAME)
    settings.expected_ports_of(ADDRESS, ROOT, NAME)
