"""The kubelet's settings: each key for itself, whatever a newer kubelet makes of the others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.wire_formats.kubelet import KubeletConfig, parse_configz

STATIC = {
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "reservedSystemCPUs": "0-1,32",
    "kubeReserved": {"cpu": "500m", "memory": "1Gi"},
    "systemReserved": {"cpu": "1"},
    "topologyManagerPolicy": "single-numa-node",
    "topologyManagerScope": "pod",
    "cgroupDriver": "systemd",
    "cgroupRoot": "/kubelet",
    "logging": {"format": "text", "flushFrequency": "5s"},
}


def parsed(**keys: object) -> KubeletConfig:
    return parse_configz(json.dumps({"kubeletconfig": keys, "other": 1}).encode())


def test_all_that_is_read() -> None:
    assert parsed(**STATIC) == KubeletConfig(
        cpu_manager_policy="static",
        cpu_manager_options=(("full-pcpus-only", "true"),),
        reserved_system_cpus=frozenset({0, 1, 32}),
        reserved_milli=1500,
        topology_policy="single-numa-node",
        topology_scope="pod",
        cgroup_driver="systemd",
        cgroup_root="/kubelet",
    )


@pytest.mark.parametrize(
    ("kube", "system", "milli"),
    [
        (None, None, 0),
        ({"cpu": "1"}, None, 1000),
        ({"cpu": "0.5"}, {"cpu": "250m"}, 750),
        ({"memory": "1Gi"}, {"cpu": "2"}, 2000),
        ({"cpu": "1e1"}, None, None),
        ({"cpu": "much"}, {"cpu": "1"}, None),
        ({"cpu": 1}, None, None),
    ],
)
def test_reserved_cpu_is_counted_in_thousandths_or_not_at_all(
    kube: object, system: object, milli: int | None
) -> None:
    assert parsed(kubeReserved=kube, systemReserved=system).reserved_milli == milli


@pytest.mark.parametrize("key", sorted(STATIC.keys() - {"logging"}))
@pytest.mark.parametrize("value", [7, ["x"], {"a": {"b": 1}}, True, 1.5])
def test_a_key_of_another_type_costs_itself_only(key: str, value: object) -> None:
    changed = parsed(**{**STATIC, key: value})
    assert changed.mistyped_keys == (key,)
    rest = {name: value for name, value in STATIC.items() if name != key}
    same = [
        name
        for name in KubeletConfig.__struct_fields__
        if name not in ("mistyped_keys", "reserved_milli")
    ]
    assert [getattr(changed, name) for name in same] == [
        getattr(parsed(**rest), name) for name in same
    ]


def test_absent_settings_are_unknown() -> None:
    nothing = dict.fromkeys(STATIC)
    assert parsed() == parsed(**nothing) == KubeletConfig(reserved_milli=0)
    assert parsed(cgroupDriver="", reservedSystemCPUs="") == KubeletConfig(reserved_milli=0)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"kubeletconfig":[]}', b"{" * 9000, b'"\xff"']
)
def test_what_is_no_such_object_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_configz(body)


@given(
    st.dictionaries(
        st.sampled_from(sorted(STATIC)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=20),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
            max_leaves=5,
        ),
    )
)
def test_no_values_do_more_than_be_odd(keys: dict[str, object]) -> None:
    result = parsed(**keys)
    assert set(result.mistyped_keys) <= set(keys)
