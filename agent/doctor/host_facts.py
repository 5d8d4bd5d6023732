"""Reads facts about this machine or a recorded host that only checks use. Nothing is changed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from collections.abc import Iterator, Mapping

from agent.cgroup.layout import CgroupLayout, parse_container_dir, parse_pod_dir
from agent.cgroup.ledger import (
    MAX_LEDGER_BYTES,
    QUARANTINE,
    NewerLedgerLine,
    decode_line,
)
from agent.config.settings import Settings
from agent.doctor.facts import (
    ClockFacts,
    ContainerRequest,
    FolderFacts,
    LedgerFacts,
    VendorFacts,
)
from agent.durable import read_file
from agent.errors import HostFileError
from agent.host.files import list_entries, read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.vendor import DeviceVendor, ServesKubelet, WithholdsDevices

MAX_PROCESSES = 65536
MAX_TEXT = 1 << 20  # bytes of one file; a mount table has lines for each container
MAX_STATE_FILES, MAX_STATE_BYTES = 256, 32 << 20
MAX_CONTAINERS = 2048
MAX_ENVIRONMENT = 256 * 1024
MAX_VALUE = 80  # characters of a variable's value
NOTHING_REQUESTED = ("", "void", "none", "NoDevices")
_VERSION = re.compile(r"\b([0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)\b")
_LOCKS = "/proc/locks"


def read_texts(host: HostFiles, paths: tuple[str, ...]) -> dict[str, str]:
    """Return the content of the readable files."""
    return {path: text for path in paths if (text := read_text(host, path, MAX_TEXT)) is not None}


def process_names(host: HostFiles) -> dict[str, int] | None:
    """Return the names of processes, each with its lowest pid; `None` if others are not visible.

    In a container without the host's processes there is no kernel thread.
    """
    pids = sorted(int(name) for name in list_entries(host, "/proc") if name.isdecimal())
    names: dict[str, int] = {}
    for pid in pids[:MAX_PROCESSES]:
        name = read_text(host, f"/proc/{pid}/comm", 64)
        if name is not None:
            names.setdefault(name, pid)
    return names if names.get("kthreadd") == 2 else None


def folder_facts(path: str) -> FolderFacts:
    """Return facts about a folder that this process writes."""
    try:
        status = os.statvfs(path)
    except OSError:
        return FolderFacts(path=path, exists=False)
    return FolderFacts(
        path=path,
        is_writable=os.access(path, os.W_OK | os.X_OK),
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
        free_bytes=status.f_bavail * status.f_frsize,
        total_bytes=status.f_blocks * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
    )


def ledger_facts(path: str) -> LedgerFacts | None:
    """Return facts about a ledger; `None` if there is none. An incomplete last line is no damage.

    It is that of an agent that was killed, or that writes now.
    """
    is_put_aside = os.path.lexists(path + QUARANTINE)
    try:
        data = read_file(path, MAX_LEDGER_BYTES)
    except FileNotFoundError:
        return LedgerFacts(path=path, is_put_aside=True) if is_put_aside else None
    except OSError as error:
        return LedgerFacts(path=path, problem=error.strerror or str(error))
    lines = data.split(b"\n")[:-1]
    decoded = [decode_line(line) for line in lines]
    return LedgerFacts(
        path=path,
        lines=len(lines),
        damaged=sum(line is None for line in decoded[:-1]),
        newer=sum(isinstance(line, NewerLedgerLine) for line in decoded),
        is_put_aside=is_put_aside,
    )


def state_problems(folder: str) -> dict[str, str]:
    """Return the problem of each JSON file of the agent's state; empty texts if there is none."""
    problems = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder))[:MAX_STATE_FILES]:
            if name.endswith(".json") and not name.startswith("."):
                problems[name] = _state_problem(os.path.join(folder, name))
    return problems


def _state_problem(path: str) -> str:
    try:
        document = json.loads(read_file(path, MAX_STATE_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        return f"damaged: {str(error)[:80]}"
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(document, dict):
        return "damaged: no object"
    if isinstance(version, int) and version > 1:
        return f"version {version} is newer than this agent's"
    return ""


# linux/timex.h
_STA_UNSYNC, _TIME_ERROR = 0x40, 5
_TIMEX_WORDS = 52  # longs; larger than the structure of any kernel


def clock_facts() -> ClockFacts | None:
    """Return the state of the kernel's clock; `None` if the kernel does not report it."""
    buffer = (ctypes.c_long * _TIMEX_WORDS)()  # modes is 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer))
    if state < 0:
        return None
    # unsigned modes, long offset, freq, maxerror, esterror, int status
    max_error_us, status = buffer[3], ctypes.c_int(buffer[5] & 0xFFFFFFFF).value
    is_synchronised = state != _TIME_ERROR and not status & _STA_UNSYNC
    return ClockFacts(is_synchronised=is_synchronised, max_error_s=max_error_us / 1e6)


def is_file_locked(path: str) -> bool | None:
    """Return whether a process has an flock of the file, or of its folder; `None` if unknown."""
    keys = set()
    for one in (path, os.path.dirname(path)):
        try:
            status = os.stat(one)
        except OSError:
            continue
        device = status.st_dev
        keys.add(f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}")
    try:
        with open(_LOCKS, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - procfs
            lines = [line.split() for line in file]
    except OSError:
        return None
    return any(len(words) > 5 and words[1] == "FLOCK" and words[5] in keys for words in lines)


def vendor_facts(
    snapshot: NodeSnapshot,
    host: HostFiles,
    vendors: Mapping[str, DeviceVendor],
    settings: Settings,
) -> dict[str, VendorFacts]:
    """Return what this host has of the requirements of each vendor with devices here."""
    functions = {
        f"{one.vendor_id:04x}:{one.base_class:04x}"
        for one in snapshot.pci.value.functions.values()
        if one.vendor_id is not None and one.base_class is not None
    }
    facts = {}
    for name in (state.vendor for state in snapshot.vendors):
        vendor = vendors.get(name)
        if vendor is None:
            continue
        needs = vendor.description.requirements
        root = str(getattr(settings.discovery.of(vendor.description), "driver_root", "/"))
        facts[name] = VendorFacts(
            requirements=needs,
            module_version=_module_version(host, needs.version_files),
            libraries=tuple(
                _libraries(host, root.rstrip("/"), needs.library_folders, needs.library)
            ),
            nodes=frozenset(
                path for path in needs.device_nodes if host.device_number(path) is not None
            ),
            functions=frozenset(functions),
            socket_prefixes=vendor.socket_prefixes if isinstance(vendor, ServesKubelet) else (),
        )
    return facts


def _module_version(host: HostFiles, paths: tuple[str, ...]) -> str:
    for path in paths:
        match = _VERSION.search(read_text(host, path, 4096) or "")
        if match is not None:
            return match[1]
    return ""


def _libraries(host: HostFiles, root: str, folders: tuple[str, ...], prefix: str) -> Iterator[str]:
    if not prefix:
        return
    for folder in folders:
        for name in list_entries(host, f"{root}{folder}"):
            if name.startswith(prefix) and name[len(prefix) :].count(".") >= 1:
                yield f"{root}{folder}/{name}"


def request_variables(vendors: Mapping[str, DeviceVendor], names: list[str]) -> frozenset[str]:
    """Return the variables by which containers request devices of these vendors."""
    here = (vendors[name] for name in names if name in vendors)
    withholding = [vendor for vendor in here if isinstance(vendor, WithholdsDevices)]
    return frozenset(variable for one in withholding for variable in one.request_variables)


def container_requests(
    own: HostFiles, layout: CgroupLayout | None, variables: frozenset[str]
) -> tuple[ContainerRequest, ...] | None:
    """Return the containers whose first process has one of the variables; `None` if unreadable.

    Only these variables are kept of an environment, which may hold secrets.
    """
    top = layout.directory("memory", layout.root) if layout and layout.root else None
    if top is None or not variables:
        return None
    requests: list[ContainerRequest] = []
    is_readable, is_any = False, False
    for pod_uid, container_id, folder in _containers(own, top):
        is_any = True
        pid = (read_text(own, f"{folder}/cgroup.procs", 4096) or "").split("\n")[0]
        try:
            environment = own.read(f"/proc/{pid}/environ", MAX_ENVIRONMENT) if pid else b""
        except HostFileError:
            continue
        is_readable = is_readable or bool(pid)
        for entry in environment.split(b"\0"):
            name, _, value = entry.decode("utf-8", "replace").partition("=")
            if name in variables and value not in NOTHING_REQUESTED:
                requests.append(
                    ContainerRequest(
                        pod_uid=pod_uid,
                        container_id=container_id,
                        variable=name,
                        value=value[:MAX_VALUE],
                    )
                )
    return tuple(requests) if is_readable or not is_any else None


def _containers(own: HostFiles, top: str) -> Iterator[tuple[str, str, str]]:
    """Yield pod uid, container id and folder of the containers below the kubelet's cgroup."""
    classes = [top, *(f"{top}/{name}" for name in list_entries(own, top) if _is_class(name))]
    count = 0
    for folder in classes:
        for pod in list_entries(own, folder):
            uid = parse_pod_dir(pod)
            if uid is None:
                continue
            for name in list_entries(own, f"{folder}/{pod}"):
                container_id = parse_container_dir(name)
                if container_id is not None and count < MAX_CONTAINERS:
                    count += 1
                    yield uid, container_id, f"{folder}/{pod}/{name}"


def _is_class(name: str) -> bool:
    return "besteffort" in name or "burstable" in name
