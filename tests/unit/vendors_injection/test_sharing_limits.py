"""HAMi-core and MPS: what a container that shares a card gets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.allocation import AllocationRefused
from agent.snapshot.container import ContainerSpec
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import HostDevices
from agent.snapshot.usage import MpsDaemon
from plugins.vendors.nvidia.injection.edits import edits
from plugins.vendors.nvidia.injection.sharing import LIBRARY, memory_limit
from tests.unit.vendors_injection.made import (
    HAMI,
    POD,
    UUIDS,
    allocation_of,
    env,
    gpu,
    nvidia_host,
    reasons,
)

CARDS = tuple(gpu(minor) for minor in range(20))
SHARED = replace(POD, labels=HAMI, user=1000)
HALF = {"memory": 8589934592, "core": 50, "ratio": 50}
REGION = "/usr/local/vgpu/containers/6f6f0000-0000-4000-8000-000000000001_worker"


def host(*paths: str, **settings: object) -> HostDevices:
    return nvidia_host(
        range(20), paths=(LIBRARY, *paths), settings={"injection": "env", **settings}
    )


def share(
    pod: ContainerSpec = SHARED, cards: int = 1, amounts: dict[str, int] = HALF
) -> ContainerEdits:
    grant = allocation_of(*UUIDS[:cards], amounts=amounts)
    return edits(CARDS, grant, pod, host())


@pytest.mark.parametrize(
    ("region", "mounts"),
    [pytest.param(False, 2, id="V49"), pytest.param(True, 3, id="V49 with region")],
)
def test_half_a_card_is_limited_by_three_variables_and_its_mounts(
    region: bool, mounts: int
) -> None:
    result = edits(CARDS, allocation_of(UUIDS[0], amounts=HALF), SHARED, host(region=region))
    variables = env(result)
    assert variables.pop("NVIDIA_VISIBLE_DEVICES") == UUIDS[0]
    cache = variables.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE", None)
    assert variables == {
        "CUDA_DEVICE_MEMORY_LIMIT": "8589934592",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
    }
    assert len(result.mounts) == mounts
    assert bool(cache) is region
    assert reasons(result) == ["SoftIsolation"]


def test_the_folder_of_the_region_is_mounted_before_the_library_in_it() -> None:
    result = share()
    paths = [mount.path for mount in result.mounts]
    assert paths.index("/usr/local/vgpu") < paths.index(LIBRARY)
    assert result.mounts[paths.index("/usr/local/vgpu")].host_path == REGION
    assert env(result)["CUDA_DEVICE_MEMORY_SHARED_CACHE"].endswith("0001_worker.cache")
    by_path = {folder.host_path: folder for folder in result.folders}
    assert (by_path[REGION].mode, by_path[REGION].owner, by_path[REGION].emptied) == (
        0o700,
        1000,
        True,
    )
    assert by_path["/tmp/vgpulock"].mode == 0o1777


@pytest.mark.parametrize("amounts", [pytest.param({"ratio": 100, "memory": 1}, id="V50")])
def test_a_whole_card_is_not_limited(amounts: dict[str, int]) -> None:
    result = share(amounts=amounts)
    assert result == ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", UUIDS[0]),))


@pytest.mark.parametrize(
    ("own", "joined"),
    [
        pytest.param("/a.so", f"/a.so:{LIBRARY}", id="V51"),
        ("", LIBRARY),
        ("  ", LIBRARY),
        ("/a.so /b.so", f"/a.so /b.so:{LIBRARY}"),
        (f"/a.so:{LIBRARY}", None),
        (LIBRARY, None),
        (f"{LIBRARY}.old", f"{LIBRARY}.old:{LIBRARY}"),
        ("/a.so\0/b.so", f"/a.so:{LIBRARY}"),
    ],
)
def test_a_librarys_preload_by_the_container_is_kept(own: str, joined: str | None) -> None:
    pod = replace(SHARED, env=(("LD_PRELOAD", "/first.so"), ("LD_PRELOAD", own)))
    assert env(share(pod)).get("LD_PRELOAD") == joined


@given(st.text(st.characters(), max_size=60))
def test_any_preload_of_the_container_still_loads_the_library_and_loses_nothing(own: str) -> None:
    pod = replace(SHARED, env=(("LD_PRELOAD", own),))
    loaded = env(share(pod)).get("LD_PRELOAD", own)
    assert set(re.split("[ :]", loaded)) >= {
        LIBRARY,
        *re.split("[ :]+", own.partition("\0")[0]),
    } - {""}
    assert "\0" not in loaded or loaded == own


@given(
    st.text(st.characters(), max_size=40),
    st.text(st.characters(), max_size=40),
    st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=3).map(tuple),
)
def test_hostile_names_never_reach_a_path(
    name: str, uid: str, variables: tuple[tuple[str, str], ...]
) -> None:
    result = share(replace(SHARED, name=name, pod_uid=uid, env=variables))
    for folder in result.folders:
        assert re.fullmatch(r"/[A-Za-z0-9/_.-]+", folder.host_path)
        assert "/.." not in folder.host_path
    skipped = "RegionSkipped" in reasons(result)
    assert skipped is ("CUDA_DEVICE_MEMORY_SHARED_CACHE" not in env(result))


def test_several_cards_are_limited_by_position_in_pci_order() -> None:
    variables = env(share(cards=2))
    assert {key: value for key, value in variables.items() if "LIMIT" in key} == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "8589934592",
        "CUDA_DEVICE_SM_LIMIT_0": "50",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "8589934592",
        "CUDA_DEVICE_SM_LIMIT_1": "50",
    }


def test_all_cores_are_no_limit() -> None:
    assert "CUDA_DEVICE_SM_LIMIT" not in env(
        share(amounts={"memory": 1 << 30, "ratio": 50, "core": 100})
    )


@pytest.mark.parametrize(
    ("amounts", "cards"),
    [({"memory": 1}, 1), ({"ratio": 50}, 1), ({"ratio": 50, "memory": 0}, 1), (HALF, 17)],
)
def test_an_amount_that_is_missing_refuses_the_grant(amounts: dict[str, int], cards: int) -> None:
    with pytest.raises(AllocationRefused, match="IncompleteGrant"):
        share(cards=cards, amounts=amounts)


def test_a_node_without_the_library_refuses_the_container_instead_of_hanging_it() -> None:
    without_library = nvidia_host(settings={"injection": "env"})
    with pytest.raises(AllocationRefused, match=r"HAMiCoreMissing: /usr/local/vgpu/libvgpu.so"):
        edits(CARDS, allocation_of(UUIDS[0], amounts=HALF), SHARED, without_library)
    with pytest.raises(AllocationRefused, match=r"HAMiCoreMissing: .*ld.so.preload"):
        edits(CARDS, allocation_of(UUIDS[0], amounts=HALF), SHARED, host(preload="file"))


def test_the_library_can_be_preloaded_by_file() -> None:
    result = edits(
        CARDS,
        allocation_of(UUIDS[0], amounts=HALF),
        SHARED,
        host("/usr/local/vgpu/ld.so.preload", preload="file"),
    )
    assert "LD_PRELOAD" not in env(result)
    assert "/etc/ld.so.preload" in [mount.path for mount in result.mounts]


def test_a_limit_of_the_containers_own_is_replaced_and_reported() -> None:
    pod = replace(SHARED, env=(("CUDA_DEVICE_MEMORY_LIMIT", "2g"),))
    assert "LimitOverridden" in reasons(share(pod))
    same = replace(SHARED, env=(("CUDA_DEVICE_MEMORY_LIMIT", "8g"),))
    assert "LimitOverridden" not in reasons(share(same))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        pytest.param("2g", 2147483648, id="V52 2g"),
        pytest.param("1024m", 1073741824, id="V52 1024m"),
        pytest.param("0", None, id="V52 0"),
        pytest.param("", None, id="V52 empty"),
        (" 0x10K", 16384),
        ("010", 8),
        ("089", None),
        ("17179869184g", None),
        ("99999999999999999999999999999999999999", None),
        ("-1", None),
        ("5q", 5),
    ],
)
def test_limits_are_read_as_the_library_reads_them(text: str, limit: int | None) -> None:
    assert memory_limit(text) == limit


@given(st.text(max_size=60))
def test_any_limit_is_read_or_none(text: str) -> None:
    limit = memory_limit(text)
    assert limit is None or 0 < limit < 1 << 64


MPS = replace(POD, annotations=(("xpu-agent.io/gpu-isolation", "mps"),))
MPS_ROOT = f"/run/xpu-agent/mps/{UUIDS[0]}"
DAEMON = MpsDaemon(pid=9, pipe_dir=f"{MPS_ROOT}/pipe", cards=(UUIDS[0],))


def test_a_client_of_mps_gets_its_share_and_the_daemons_pipes() -> None:
    result = edits(
        CARDS, allocation_of(UUIDS[0], amounts=HALF), MPS, replace(host(), mps=(DAEMON,))
    )
    assert env(result) == {
        "NVIDIA_VISIBLE_DEVICES": UUIDS[0],
        "CUDA_MPS_PIPE_DIRECTORY": f"{MPS_ROOT}/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }
    assert [(m.host_path, m.path) for m in result.mounts] == [
        (f"{MPS_ROOT}/shm", "/dev/shm"),
        (f"{MPS_ROOT}/pipe", f"{MPS_ROOT}/pipe"),
    ]


@pytest.mark.parametrize(
    ("daemons", "cards", "amounts", "words"),
    [
        ((), 1, HALF, "MPSDown"),
        ((replace(DAEMON, pipe_dir=None),), 1, HALF, "MPSDown"),
        ((replace(DAEMON, pipe_dir="/etc"),), 1, HALF, "MPSDown"),
        ((replace(DAEMON, cards=(UUIDS[1],)),), 1, HALF, "MPSDown"),
        ((DAEMON,), 2, HALF, "MixedGrant"),
        ((DAEMON,), 1, {"core": 50}, "IncompleteGrant"),
    ],
)
def test_mps_without_a_daemon_of_the_card_is_refused(
    daemons: tuple[MpsDaemon, ...], cards: int, amounts: dict[str, int], words: str
) -> None:
    with pytest.raises(AllocationRefused, match=words):
        edits(
            CARDS, allocation_of(*UUIDS[:cards], amounts=amounts), MPS, replace(host(), mps=daemons)
        )
