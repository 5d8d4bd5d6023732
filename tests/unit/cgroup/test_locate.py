"""Where a kubelet with its own `--cgroup-root` has its groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cgroup import layout
from agent.cgroup.layout import PROCESS_S, LayoutLocator, kubelet_process
from agent.host.files import LiveHostFiles
from agent.recording.tree import EntryKind, TreeFiles
from agent.usage.monitor import UsageCollector
from tests.unit.cgroup.test_layout import SPLIT, UID, UNIFIED

TOP = "/sys/fs/cgroup"


def tree(*groups: str, mounts: str = UNIFIED, **files: str) -> TreeFiles:
    """A host with these groups, and with files by path, `_` for `/`."""
    entries: dict[str, bytes | EntryKind] = {
        f"{TOP}{group}": EntryKind.DIRECTORY for group in groups
    }
    texts = {name.replace("_", "/"): text.encode() for name, text in files.items()}
    return TreeFiles.from_entries({"/proc/mounts": mounts.encode(), **entries, **texts})


def kubelet(*words: str, pid: int = 812) -> dict[str, str]:
    """The files of a kubelet's process."""
    line = "\0".join(("/usr/bin/kubelet", *words, ""))
    return {f"_proc_{pid}_comm": "kubelet\n", f"_proc_{pid}_cmdline": line}


def find_root(host: TreeFiles, named: str = "") -> tuple[str | None, str]:
    one = layout.detect_layout(host, named)
    assert one is not None
    return one.root, one.driver


@pytest.mark.parametrize(
    ("named", "systemd", "cgroupfs"),
    [
        ("/", "/kubepods.slice", "/kubepods"),
        ("/kubelet", "/kubelet.slice/kubelet-kubepods.slice", "/kubelet/kubepods"),
        ("/a/b/", "/a.slice/a-b.slice/a-b-kubepods.slice", "/a/b/kubepods"),
        ("/gpu-pool", "/gpu_pool.slice/gpu_pool-kubepods.slice", "/gpu-pool/kubepods"),
    ],
)
def test_both_drivers_have_their_own_spelling_of_a_named_root(
    named: str, systemd: str, cgroupfs: str
) -> None:
    assert layout.configured_roots(named) == (systemd, cgroupfs)
    assert find_root(tree(systemd), named) == (systemd, "systemd")
    assert find_root(tree(cgroupfs), named) == (cgroupfs, "cgroupfs")


@pytest.mark.parametrize("group", ["/a/kubepods", "/a.slice/a-kubepods.slice"])
def test_the_group_itself_may_be_named(group: str) -> None:
    assert layout.configured_roots(group) == (group,)


@pytest.mark.parametrize(
    "odd", ["", "kubelet", "/../etc", "/a/./b", "/a b", "/" + "x" * 300, "/\0"]
)
def test_what_is_no_path_of_cgroups_names_nothing(odd: str) -> None:
    assert layout.configured_roots(odd) == ()
    assert find_root(tree("/kubepods"), odd) == ("/kubepods", "cgroupfs")


def test_a_named_root_counts_before_others_and_a_wrong_one_hides_none() -> None:
    both = tree("/kubepods.slice", "/a/kubepods")
    assert find_root(both)[0] == "/kubepods.slice"
    assert find_root(both, "/a")[0] == "/a/kubepods"
    assert find_root(both, "/other")[0] == "/kubepods.slice"


POOL = "/pool/kubepods", "/burstable", "/besteffort"
SLICES = (
    "/pool.slice/pool-kubepods.slice",
    "/pool-kubepods-burstable.slice",
    "/pool-kubepods-besteffort.slice",
)


@pytest.mark.parametrize("names", [POOL, SLICES])
@pytest.mark.parametrize(("mounts", "below"), [(UNIFIED, ""), (SPLIT, "/memory")])
def test_without_a_name_one_level_is_searched_for_what_a_kubelet_makes(
    names: tuple[str, ...], mounts: str, below: str
) -> None:
    group, *classes = names
    groups = [f"{below}{group}{name}" for name in classes]
    assert find_root(tree(*groups, mounts=mounts))[0] == group
    assert find_root(tree(groups[0], mounts=mounts))[0] is None  # some other program's
    deeper = [f"{below}/docker/x{group}{name}" for name in classes]
    assert find_root(tree(*deeper, mounts=mounts))[0] is None


def test_a_group_that_was_only_searched_for_gives_way_to_the_kubelets_own(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs/cgroup"
    for name in ("burstable", "besteffort"):
        (top / "pool/kubepods" / name).mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_text(UNIFIED)
    locator = LayoutLocator(LiveHostFiles(str(tmp_path)))

    def root(now_s: float) -> str | None:
        here = locator.layout(now_s)
        assert here is not None
        return here.root

    assert root(0.0) == "/pool/kubepods"
    (top / "kubepods.slice").mkdir()
    assert root(1.0) == "/pool/kubepods"
    assert root(PROCESS_S) == "/kubepods.slice"
    (top / "kubepods.slice").rmdir()
    assert root(3 * PROCESS_S) == "/kubepods.slice"


@pytest.mark.parametrize(
    "words",
    [
        ("--cgroup-root=/a/b",),
        ("--v=2", "--cgroup-root", "/a/b"),
        ("--config=/etc/k.yaml",),
        ("--config", "/etc/k.yaml"),
    ],
)
def test_the_process_names_its_root_by_a_flag_or_by_its_file(words: tuple[str, ...]) -> None:
    files = {**kubelet(*words), "_etc_k.yaml": "kind: KubeletConfiguration\ncgroupRoot: /a/b\n"}
    host = tree("/a/b/kubepods", **files)
    process = kubelet_process(host)
    assert process is not None
    assert (process.pid, process.cgroup_root) == (812, "/a/b")
    here = LayoutLocator(host).layout(0.0)
    assert here is not None
    assert here.root == "/a/b/kubepods"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"_proc_7_comm": "containerd\n", "_proc_7_cmdline": "x\0--cgroup-root=/a/b\0"},
        kubelet(),
        kubelet("--config=/none"),
        kubelet("--config=k.yaml"),
        {**kubelet("--config=/etc/k.yaml"), "_etc_k.yaml": "cgroupRoot: [/a/b]\n"},
        {**kubelet("--config=/etc/k.yaml"), "_etc_k.yaml": "{" * 4000},
    ],
)
def test_without_a_usable_flag_of_the_process_nothing_is_guessed(files: dict[str, str]) -> None:
    here = LayoutLocator(tree("/a/b/kubepods", **files)).layout(0.0)
    assert here is not None
    assert here.root is None


def test_processes_are_read_seldom_and_the_kubelets_own_setting_is_used_when_known(
    tmp_path: Path,
) -> None:
    named = ""
    for group in ("a/b", "c/d"):
        (tmp_path / "sys/fs/cgroup" / group / "kubepods").mkdir(parents=True)
    process = tmp_path / "proc/812"
    process.mkdir(parents=True)
    (tmp_path / "proc/mounts").write_text(UNIFIED)
    locator = LayoutLocator(LiveHostFiles(str(tmp_path)), lambda: named)

    def root(now_s: float) -> str | None:
        here = locator.layout(now_s)
        assert here is not None
        return here.root

    assert root(0.0) is None
    (process / "comm").write_text("kubelet\n")
    (process / "cmdline").write_text("kubelet\0--cgroup-root=/a/b\0")
    assert root(1.0) is None
    assert root(PROCESS_S) == "/a/b/kubepods"
    assert root(PROCESS_S + 1) == "/a/b/kubepods"
    named = "/c/d"
    assert root(PROCESS_S + 2) == "/c/d/kubepods"


@pytest.mark.parametrize(
    "pod",
    [
        f"/a/b/kubepods/burstable/pod{UID}",
        "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-burstable.slice/"
        f"a-b-kubepods-burstable-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_pods_below_a_named_root_are_measured(pod: str) -> None:
    host = tree(pod)
    without = UsageCollector(host)
    named = UsageCollector(host, locator=LayoutLocator(host, lambda: "/a/b"))
    for collector in (without, named):
        collector.measure(100.0)
    assert without.pods == ()
    assert [one.uid for one in named.pods] == [UID]


def test_a_pods_slice_is_read_whatever_the_root_is_called() -> None:
    name = f"Gpu_pool.x-kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    assert layout.parse_pod_dir(name) == UID
