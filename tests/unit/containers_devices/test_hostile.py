"""Annotations, containers and devices that anybody may have written: answered or refused."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.config.containers import HookSettings
from agent.snapshot.allocation import RefusalReason
from agent.snapshot.container import ContainerSpec
from agent.snapshot.host_devices import HostDevices, RdmaFunction
from plugins.vendors.nvidia.injection.sharing import LIBRARY
from tests.factory import nic
from tests.hostile import texts
from tests.unit.allocation.made import pod
from tests.unit.containers_devices.made import created, device
from tests.unit.vendors_injection.made import UUIDS, gpu, node, nvidia_host

CARDS = (*(device(gpu(minor)) for minor in range(3)), nic(0, vfs=2))
VERBS = RdmaFunction(
    address="0000:18:00.0", names=("mlx5_0",), verbs=(node("/dev/infiniband/uverbs0", 231, 192),)
)
HOST = {"nvidia": nvidia_host(paths=(LIBRARY,)), "rdma": HostDevices(functions=(VERBS,))}
REASONS = {refusal.value for refusal in RefusalReason}

ids = st.sampled_from((*UUIDS[:4], "0000:18:00.0", "all", "0", "", f"{UUIDS[0]}::1")) | texts
amounts = st.dictionaries(
    st.sampled_from(
        ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio", "koordinator.sh/rdma")
    )
    | texts,
    st.sampled_from(("100", "50", "0", "-1", "1e3", "NaN", 10**30, "")) | texts,
    max_size=3,
)
extensions = st.fixed_dictionaries(
    {},
    optional={
        "vfs": st.lists(st.fixed_dictionaries({"busID": ids}), max_size=2),
        "gpuSharedResourceTemplate": texts,
    },
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "minor": st.integers(-2, 4) | st.none(),
        "id": ids,
        "resources": amounts,
        "extension": extensions,
    },
)
kinds = st.sampled_from(("gpu", "rdma", "fpga")) | texts
written = st.dictionaries(kinds, st.lists(entries, max_size=3), max_size=2).map(json.dumps)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
labels = pairs | st.just((("koordinator.sh/gpu-isolation-provider", "HAMi-core"),))


@given(
    annotation=written | st.text(max_size=60),
    name=texts,
    env=pairs | st.just((("NVIDIA_VISIBLE_DEVICES", "all"),)),
    labelled=labels,
    handler=st.sampled_from(("", "nvidia")) | texts,
)
def test_any_annotation_gives_devices_that_are_here_or_a_reason(
    annotation: str,
    name: str,
    env: tuple[tuple[str, str], ...],
    labelled: tuple[tuple[str, str], ...],
    handler: str,
) -> None:
    answer = created(
        annotation,
        HOST,
        CARDS,
        container=ContainerSpec(name=name, env=env),
        view=pod(1, annotation),
        box={"labels": labelled, "runtime_handler": handler},
        hooks=HookSettings(ungranted="void"),
    )
    if answer.failed:
        assert answer.reason in REASONS
        assert not answer.edits.nodes
        assert not answer.edits.env
        return
    there = {one.path for means in HOST.values() for one in means.nodes} | {VERBS.verbs[0].path}
    assert {one.path for one in answer.edits.nodes} <= there
    shown = dict(answer.edits.env).get("NVIDIA_VISIBLE_DEVICES", "void")
    assert set(shown.split(",")) <= {*UUIDS[:3], "void"}


def test_a_grant_of_an_unlisted_pod_starts_no_container() -> None:
    answer = created("{}", HOST, CARDS, box={"uid": ""})
    assert answer.reason == "BadGrant"
    assert answer.failed
