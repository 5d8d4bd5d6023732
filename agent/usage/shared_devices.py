"""Reads HAMi-core regions and MPS daemons of shared cards, and compares them with the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.snapshot.device import Device
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceSample, Problem
from agent.snapshot.pod import PodView
from agent.snapshot.usage import MpsDaemon, SharedCard, SharedRegion, SharingView
from agent.usage.hami_regions import read_regions
from agent.wire_formats.device_info import is_cuda_device
from agent.wire_formats.kernel_text import parse_digits

MIN_MISMATCH_RATIO = 0.10
MIN_MISMATCH_BYTES = 256 << 20
MISMATCH_DURATION_S = 60.0

RegionCardKey = tuple[str, str, int]  # pod uid, container, card

MemoryByProcess = Mapping[str, Mapping[int, int]]  # by uuid, then host pid: bytes


def memory_by_process(samples: Iterable[DeviceSample], uuids: Mapping[str, str]) -> MemoryByProcess:
    """Return the driver's figures by uuid and host pid; `uuids` are by device key.

    A card is left out if the driver does not report its processes, or the memory of one of them.
    """
    by_card: dict[str, dict[int, int]] = {}
    for sample in samples:
        processes, uuid = sample.processes, uuids.get(sample.key)
        if processes is None or uuid is None:
            continue
        memory_by_pid = {p.pid: p.memory_bytes for p in processes if p.memory_bytes is not None}
        if len(memory_by_pid) == len({p.pid for p in processes}):
            by_card[uuid] = memory_by_pid
    return by_card


class MismatchTracker:
    """Stores since when counts and measurements differ; drops entries of ended containers."""

    def __init__(self) -> None:
        self._since_s: dict[RegionCardKey, float] = {}

    def check(
        self, regions: Iterable[SharedRegion], measured: MemoryByProcess, now_s: float
    ) -> tuple[tuple[SharedRegion, ...], tuple[Problem, ...]]:
        """Return the view with the driver's figure for each count that has differed for a minute.

        A count differs if the difference exceeds a tenth and 256 MiB. If the driver does not report
        the same processes, the two cannot be compared.
        """
        previous, self._since_s = self._since_s, {}
        checked: list[SharedRegion] = []
        problems: list[Problem] = []
        for region in regions:
            cards = []
            for card in region.cards:
                key = (region.pod_uid, region.container, card.index)
                total = _measured_memory(card, measured)
                if total is not None and _is_mismatch(card.used_bytes, total):
                    self._since_s[key] = previous.get(key, now_s)
                lasting = now_s - self._since_s.get(key, now_s) >= MISMATCH_DURATION_S
                cards.append(replace(card, measured_bytes=total) if lasting else card)
                if lasting:
                    problems.append(_mismatch_problem(region, card, total))
            checked.append(replace(region, cards=tuple(cards)))
        return tuple(checked), tuple(problems)


def _measured_memory(card: SharedCard, measured: MemoryByProcess) -> int | None:
    """Return the sum over the card's processes; `None` if one of them is not known to both."""
    by_pid = measured.get(card.uuid)
    pids = {process.host_pid for process in card.processes}
    if by_pid is None or not pids or not pids <= by_pid.keys():
        return None
    return sum(by_pid[pid] for pid in pids)


def _is_mismatch(accounted: int, measured: int) -> bool:
    difference = abs(accounted - measured)
    return difference > MIN_MISMATCH_BYTES and difference > MIN_MISMATCH_RATIO * measured


def _mismatch_problem(region: SharedRegion, card: SharedCard, measured: int | None) -> Problem:
    container = f"pod {region.pod_uid} container {region.container} on {card.uuid[:64]}"
    return Problem(
        reason="RegionDrift",
        message=f"{container}: HAMi-core counts {card.used_bytes} bytes, the driver {measured}",
    )


MPS_COMMAND = b"nvidia-cuda-mps"  # the kernel cuts both names to these fifteen characters
CONTROL_PROGRAM, SERVER_PROGRAM = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
DEFAULT_PIPE_FOLDER, DEFAULT_LOG_FOLDER = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - CUDA's own
MAX_DAEMONS = 64
MAX_TEXT = 512  # characters of a folder's name
_COMM_BYTES = 32
_ARGUMENT_BYTES = 4096
_ENVIRONMENT_BYTES = 64 * 1024


class _MpsProcess(msgspec.Struct, frozen=True):
    """A process of MPS."""

    pid: int
    program: str
    parent: int | None


def read_mps(host: HostFiles) -> tuple[MpsDaemon, ...]:
    """Return the control daemons by pid, each with its servers.

    A daemon whose environment is not readable has no folders and no cards. Any process can take
    these names: the result shows what runs, and is no proof of identity.
    """
    processes = list(_find_processes(host))
    servers = [process for process in processes if process.program == SERVER_PROGRAM]
    daemons = [
        _read_daemon(host, process) for process in processes if process.program == CONTROL_PROGRAM
    ]
    return tuple(
        replace(daemon, servers=tuple(s.pid for s in servers if s.parent == daemon.pid))
        for daemon in daemons[:MAX_DAEMONS]
    )


def _find_processes(host: HostFiles) -> Iterator[_MpsProcess]:
    try:
        names = host.names("/proc")
    except HostFileError:
        return
    for pid in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
        if not _read_process_file(host, pid, "comm", _COMM_BYTES).startswith(MPS_COMMAND):
            continue
        program = _read_process_file(host, pid, "cmdline", _ARGUMENT_BYTES).partition(b"\0")[0]
        name = program.rpartition(b"/")[2].decode("ascii", "replace")
        yield _MpsProcess(
            pid, name, parse_parent_pid(_read_process_file(host, pid, "stat", _ARGUMENT_BYTES))
        )


def parse_parent_pid(stat: bytes) -> int | None:
    """Return the parent's pid from `stat`; the name in it may contain blanks and brackets."""
    fields = stat.rpartition(b")")[2].split()
    parent = fields[1] if len(fields) > 1 else b""
    return parse_digits(parent, 10)


def _read_daemon(host: HostFiles, process: _MpsProcess) -> MpsDaemon:
    data = _read_process_file(host, process.pid, "environ", _ENVIRONMENT_BYTES)
    if not data:
        return MpsDaemon(pid=process.pid)
    text = data.decode("utf-8", "replace")
    env = dict(pair.partition("=")[::2] for pair in text.split("\0"))
    cards = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return MpsDaemon(
        pid=process.pid,
        pipe_dir=env.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_FOLDER)[:MAX_TEXT],
        log_dir=env.get("CUDA_MPS_LOG_DIRECTORY", DEFAULT_LOG_FOLDER)[:MAX_TEXT],
        cards=tuple(card.strip()[:MAX_TEXT] for card in cards[:64] if card.strip()),
    )


def _read_process_file(host: HostFiles, pid: int, name: str, limit: int) -> bytes:
    """Return a process's file; nothing if it has ended or may not be read."""
    try:
        return host.read(f"/proc/{pid}/{name}", limit)
    except HostFileError:
        return b""


REGIONS_INTERVAL_S = 10.0

MPS_INTERVAL_S = 60.0  # it walks all processes


class SharedDeviceCollector:
    """Reads one host's regions and daemons. Not for two threads."""

    def __init__(self, host: HostFiles, regions: str) -> None:
        """Read nothing yet. `regions` is the folder of HAMi-core's files; empty: none.

        A recorded host has no regions: they are not text, and recordings do not contain them.
        """
        self._host = host
        self._regions_folder = (
            host.path(regions) if regions and isinstance(host, LiveHostFiles) else ""
        )
        self._mismatches = MismatchTracker()
        self._mps: tuple[MpsDaemon, ...] = ()
        self.due_s = float("-inf")  # monotonic time of the next look
        self._mps_read_s: float | None = None

    def collect(
        self,
        now_s: float,
        wall_s: float,
        pods: Iterable[PodView],
        devices: Iterable[Device],
        samples: Iterable[DeviceSample],
    ) -> SharingView:
        """Return how cards are shared.

        `now_s` is monotonic, and `due_s` or later. A node without NVIDIA cards shares none, and
        nothing is read.
        """
        self.due_s = now_s + REGIONS_INTERVAL_S
        uuids = {d.key: d.info.uuid for d in devices if is_cuda_device(d.info) and d.info.uuid}
        if not uuids:
            return SharingView()
        if self._mps_read_s is None or now_s - self._mps_read_s >= MPS_INTERVAL_S:
            self._mps_read_s = now_s
            self._mps = read_mps(self._host)
        if not self._regions_folder:
            return SharingView(mps=self._mps, wall_s=wall_s)
        regions, problems = read_regions(self._regions_folder, pods)
        checked, drifts = self._mismatches.check(regions, memory_by_process(samples, uuids), now_s)
        return SharingView(
            regions=checked, mps=self._mps, problems=(*problems, *drifts), wall_s=wall_s
        )
