"""Reads the inputs of the checks from this machine or a recorded host."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec
import psutil

from agent.access.web_config import read_web_config
from agent.cgroup.layout import CgroupLayout, KubeletProcess, detect_layout, kubelet_process
from agent.cgroup.ledger import LEDGER_FILE
from agent.config.address import parse_listen_address
from agent.config.settings import MetricsSettings, Settings
from agent.deviceplugin.kubelet_folder import plugin_folder
from agent.doctor.check import CheckInputs, RuntimeProcess
from agent.doctor.container_checks import CHECKED_PATHS
from agent.doctor.enforcement_checks import CLOSID_FILES
from agent.doctor.facts import ApiFacts, EndpointFacts, LedgerFacts, LockFacts
from agent.doctor.host_checks import CHECKED_TEXTS, REBOOT_FILES
from agent.doctor.host_facts import (
    clock_facts,
    container_requests,
    folder_facts,
    ledger_facts,
    process_names,
    read_texts,
    request_variables,
    state_problems,
    vendor_facts,
)
from agent.doctor.kubelet_checks import kubelet_checkpoints
from agent.doctor.node_report import NodeReport, node_report, parse_report
from agent.doctor.probes import open_connection
from agent.errors import BadConfig, HostFileError, ParseError
from agent.host.files import list_entries, read_text
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.vendor import DeviceVendor, WithholdsDevices

RUNTIME_NAMES = ("containerd", "crio")
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
NRI_PLUGIN_ID = "io.containerd.nri.v1.nri"
ANSWER_DEADLINE_S = 2.0
MAX_ANSWER_BYTES = 64 << 20  # bytes of a snapshot
MAX_PROCESSES = 65536
MAX_CONFIG_BYTES = 256 * 1024
_SELF_CHECK = re.compile(r"\[([+-])\] (\S+)(?: (.*))?")
_MEMLOCK = re.compile(r"^Max locked memory +([0-9]{1,20}|unlimited) ", re.MULTILINE)


_NO_VENDORS: Mapping[str, DeviceVendor] = MappingProxyType({})

# a snapshot, or the reason why none was received
AgentAnswer = tuple[Mapping[str, object] | None, str]
CUT_SERIES = "xpu_agent_metrics_cut_series"


class OtherSources(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of sources that may hang, and facts that only the command has.

    A source without an answer is `None`.
    """

    api: ApiFacts = ApiFacts(absence="a recorded host")
    lock: LockFacts | None = None
    machine_id: str = ""
    health_page: bytes | None = None  # /healthz?verbose of the running agent
    metrics_page: bytes | None = None
    metrics_port: EndpointFacts | None = None
    kubelet_health: EndpointFacts | None = None
    pod_resources: EndpointFacts | None = None


NO_SOURCES = OtherSources()


def read_inputs(  # noqa: PLR0913 - all but three are keywords that most callers leave out
    settings: Settings,
    snapshot: NodeSnapshot,
    host: HostFiles,
    *,
    live: bool,
    own: HostFiles,
    vendors: Mapping[str, DeviceVendor] = _NO_VENDORS,
    answer: AgentAnswer = (None, "a recorded host"),
    runbook: Runbook = OWN_RUNBOOK,
    sources: OtherSources = NO_SOURCES,
) -> CheckInputs:
    """Read the inputs of checks besides the snapshot; unreadable ones are unknown.

    In the agent's container `own` files are those of the container: its cgroups, its socket.
    `answer` is that of `fetch_agent_snapshot`; `vendors` are all loaded vendors.
    """
    agent, problem = answer
    process = kubelet_process(host) if live else None
    named = settings.kubelet.cgroup_root or _configured_cgroup_root(agent)
    layout = detect_layout(own, named or (process.cgroup_root if process is not None else ""))
    discovered, running = node_report(snapshot), None
    if agent is not None:
        agent, running, problem = _validate_agent_snapshot(agent, discovered)
    runtimes = tuple(_runtime_processes(host)) if live else ()
    facts_by_vendor = vendor_facts(snapshot, host, vendors, settings)
    # imported here: only this command asks which implementation there is
    from google.protobuf.internal import api_implementation  # noqa: PLC0415 - protobuf

    return CheckInputs(
        settings=settings,
        snapshot=snapshot,
        node=running or discovered,
        discovery=discovered if running is not None else None,
        runbook=runbook,
        is_live=live,
        is_root=live and os.geteuid() == 0,
        agent=agent,
        agent_problem=problem,
        self_checks=parse_self_checks(sources.health_page),
        runtimes=runtimes,
        process_states=_process_states(running) if running is not None else {},
        processes=process_names(own) if live else None,
        paths=frozenset(
            _existing_paths(own, (settings.nri.socket,))
            + _existing_paths(host, (*CHECKED_PATHS, *REBOOT_FILES))
        ),
        texts=read_texts(
            own,
            (*CHECKED_TEXTS, *CLOSID_FILES, *kubelet_checkpoints(settings.kubelet.root_dir)),
        ),
        device_runtimes=device_runtimes(vendors.values()),
        char_links=_char_links(snapshot, host, vendors) if live else {},
        cgroup_version=layout.version if layout is not None else None,
        cgroup_driver=layout.driver if layout is not None and layout.root is not None else None,
        controllers=_controllers(layout, own),
        has_burst_file=_has_burst_file(layout, own),
        resctrl=_resctrl_state(host) if live else "",
        resctrl_groups=_resctrl_groups(host) if live else None,
        kubelet=_kubelet_evidence(process, settings, host) if live else "",
        protobuf=api_implementation.Type(),
        vendors=facts_by_vendor,
        api=sources.api,
        lock=sources.lock,
        machine_id=sources.machine_id,
        clock=clock_facts() if live else None,
        folders={
            name: folder_facts(path)
            for name, path in _own_folders(settings).items()
            if live and path
        },
        ledger=_ledger(settings) if live else None,
        state_problems=_state_problems(settings) if live else None,
        metrics_port=sources.metrics_port,
        kubelet_health=sources.kubelet_health,
        pod_resources=sources.pod_resources,
        plugin_sockets=_plugin_sockets(own, settings) if live else None,
        cut_series=sum_of_series(sources.metrics_page, CUT_SERIES),
        requests=container_requests(own, layout, request_variables(vendors, list(facts_by_vendor)))
        if live
        else None,
    )


def _own_folders(settings: Settings) -> dict[str, str]:
    """Return the folders that the agent writes, by setting."""
    return {
        "node.state_dir": settings.node.state_dir,
        "node.run_dir": settings.node.run_dir,
        "cdi.dir": settings.cdi.dir,
    }


def _ledger(settings: Settings) -> LedgerFacts | None:
    folder = settings.node.state_dir
    return ledger_facts(os.path.join(folder, LEDGER_FILE)) if folder else None


def _state_problems(settings: Settings) -> dict[str, str] | None:
    folder = settings.node.state_dir
    return state_problems(folder) if folder and os.path.isdir(folder) else None


def _plugin_sockets(own: HostFiles, settings: Settings) -> tuple[str, ...] | None:
    """Return the names of sockets for device plug-ins; `None` if there is no such folder."""
    folder = plugin_folder(settings.kubelet.root_dir)
    if not own.exists(folder):
        return None
    return tuple(name for name in list_entries(own, folder) if name.endswith(".sock"))


def parse_self_checks(page: bytes | None) -> dict[str, tuple[bool, str]] | None:
    """Return the running agent's checks on itself by name; `None` if it did not answer."""
    if page is None:
        return None
    checks = {}
    for line in page.decode("utf-8", "replace").splitlines():
        match = _SELF_CHECK.fullmatch(line)
        if match is not None:
            checks[match[2]] = match[1] == "+", match[3] or ""
    return checks


def sum_of_series(page: bytes | None, name: str) -> float | None:
    """Return the sum of all series of a metric, 0 without any; `None` without a page."""
    if page is None:
        return None
    values = [
        float(match[1])
        for match in re.finditer(
            rf"^{re.escape(name)}(?:\{{[^\n]*\}})? ([0-9.e+]{{1,32}})$",
            page.decode("utf-8", "replace"),
            re.MULTILINE,
        )
    ]
    return sum(values)


def silent_vendors(answer: AgentAnswer, source: str) -> frozenset[str]:
    """Return the vendors whose driver the running agent of this machine cannot call now.

    A new discovery must not call them: the agent released the driver so that it can be unloaded, or
    the driver hangs, and a process that calls it would hang, too.
    """
    agent, _ = answer
    try:
        running = parse_report(agent or {})
    except ParseError:
        return frozenset()
    if running.node.source != source:
        return frozenset()
    return frozenset(vendor.vendor for vendor in running.vendors if vendor.is_silent)


def fetch_agent_snapshot(settings: Settings) -> AgentAnswer:
    """Return the snapshot of the agent on this machine, or the reason why there is none."""
    body, problem = fetch_page(settings, "/api/v1/snapshot")
    if body is None:
        return None, problem
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        return None, f"the snapshot is no JSON: {error}"
    return (
        (document, "") if isinstance(document, dict) else (None, "the snapshot is no JSON object")
    )


def fetch_page(
    settings: Settings, path: str, statuses: tuple[int, ...] = (200,)
) -> tuple[bytes | None, str]:
    """Return a page of the agent on this machine, or the reason why there is none."""
    metrics = settings.metrics
    try:
        address = parse_listen_address(metrics.page_listen or metrics.listen)
    except BadConfig as error:
        return None, str(error)
    # a second address of the loopback speaks plain HTTP
    is_second = bool(metrics.page_listen) and address.is_loopback
    encrypted = is_encrypted(metrics) and not is_second
    url = address.url("https" if encrypted else "http")
    connection = open_connection(
        address.local_host, address.port, ANSWER_DEADLINE_S, encrypted=encrypted
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status not in statuses:
            return None, f"{url} answers {answer.status}"
        return answer.read(MAX_ANSWER_BYTES), ""
    except (OSError, http.client.HTTPException) as error:
        return None, f"none answers at {url}: {error}"
    finally:
        connection.close()


def is_encrypted(metrics: MetricsSettings) -> bool:
    """Return whether `metrics.listen` speaks TLS; a file that cannot be read means no."""
    if metrics.tls.cert_file or not metrics.web_config_file:
        return bool(metrics.tls.cert_file)
    try:
        return read_web_config(metrics.web_config_file).tls.is_on
    except BadConfig:
        return False


def _validate_agent_snapshot(
    agent: Mapping[str, object], discovered: NodeReport
) -> tuple[Mapping[str, object] | None, NodeReport | None, str]:
    """Return the agent's snapshot, its report on devices, and why one of them is not used.

    A snapshot of another machine, such as a recorded one, is not about this machine.
    """
    try:
        running = parse_report(agent)
    except ParseError as error:
        return agent, None, f"answers, but its snapshot has another form: {error}"
    if not running.is_same_machine(discovered):
        return None, None, f"the agent that answers shows another machine: {running.node.source}"
    return agent, running, ""


def _configured_cgroup_root(agent: Mapping[str, object] | None) -> str:
    """Return the `--cgroup-root` that the kubelet reported to the running agent.

    Empty if it did not.
    """
    value: object = agent
    for name in ("cluster", "kubelet", "value", "cgroup_root"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def _controllers(layout: CgroupLayout | None, own: HostFiles) -> frozenset[str] | None:
    """Return the controllers of the cgroups of pods; `None` if there is no such cgroup."""
    if layout is None or layout.root is None:
        return None
    if layout.version == 1:
        return frozenset(name for name, _ in layout.mounts)
    text = read_text(own, f"{layout.unified}{layout.root}/cgroup.subtree_control")
    return None if text is None else frozenset(text.split())


def _has_burst_file(layout: CgroupLayout | None, own: HostFiles) -> bool | None:
    """Return whether the kernel has CPU burst; `None` without a cgroup of pods."""
    if layout is None or layout.root is None:
        return None
    directory = layout.directory("cpu", layout.root)
    name = "cpu.max.burst" if layout.version == 2 else "cpu.cfs_burst_us"
    return directory is not None and own.exists(f"{directory}/{name}")


def _resctrl_groups(host: HostFiles) -> int | None:
    """Return the number of control groups besides the root group; `None` if unmounted."""
    if not host.exists("/sys/fs/resctrl/info"):
        return None
    names = list_entries(host, "/sys/fs/resctrl")
    return sum(host.exists(f"/sys/fs/resctrl/{name}/schemata") for name in names)


def _resctrl_state(host: HostFiles) -> str:
    """Return whether resctrl is mounted or can be mounted; empty if unknown."""
    if host.exists("/sys/fs/resctrl/info"):
        return "mounted"
    file_systems = read_text(host, "/proc/filesystems")
    if file_systems is None:
        return ""
    return "unmounted" if "resctrl" in file_systems.split() else "unsupported"


def _kubelet_evidence(process: KubeletProcess | None, settings: Settings, host: HostFiles) -> str:
    """Return evidence that a kubelet manages this node; empty if there is none."""
    if process is not None:
        root = f" with the cgroup root {process.cgroup_root!r}" if process.cgroup_root else ""
        return f"the kubelet runs as process {process.pid}{root}"
    pods = f"{settings.kubelet.root_dir}/pods"
    return f"{pods} has pods" if list_entries(host, pods) else ""


def _process_states(running: NodeReport) -> dict[int, str]:
    """Return the state of each worker's process; in a pod this needs `hostPID`."""
    states = {}
    for pid in (vendor.pid for vendor in running.vendors if vendor.pid is not None):
        with contextlib.suppress(psutil.Error):  # it has ended since
            states[pid] = str(psutil.Process(pid).status())
    return states


def _existing_paths(files: HostFiles, paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if path.startswith("/") and files.exists(path)]


def _runtime_processes(host: HostFiles) -> Iterator[RuntimeProcess]:
    """Yield the runtimes among this machine's processes."""
    try:
        names = host.names("/proc")
    except HostFileError:
        return
    for name in names[:MAX_PROCESSES]:
        if name.isdecimal() and (comm := read_text(host, f"/proc/{name}/comm")) in RUNTIME_NAMES:
            limits = _MEMLOCK.search(read_text(host, f"/proc/{name}/limits") or "")
            unlimited = limits is not None and limits[1] == "unlimited"
            yield RuntimeProcess(
                name=comm or "",
                pid=int(name),
                memlock_bytes=None if limits is None or unlimited else int(limits[1]),
                is_memlock_known=limits is not None,
                is_nri_disabled=_is_nri_disabled(host) if comm == "containerd" else None,
            )


def _is_nri_disabled(host: HostFiles) -> bool | None:
    """Return whether containerd's settings disable NRI; `None` if they do not mention it."""
    try:
        data = tomllib.loads(
            host.read(CONTAINERD_CONFIG, MAX_CONFIG_BYTES).decode("utf-8", "replace")
        )
    except (HostFileError, tomllib.TOMLDecodeError, RecursionError):
        return None
    plugins = data.get("plugins")
    section = plugins.get(NRI_PLUGIN_ID) if isinstance(plugins, dict) else None
    is_disabled = section.get("disable") if isinstance(section, dict) else None
    return is_disabled if isinstance(is_disabled, bool) else None


def _char_links(
    snapshot: NodeSnapshot, host: HostFiles, vendors: Mapping[str, DeviceVendor]
) -> dict[str, bool]:
    """Return whether /dev/char has a link to each node of the vendors that need links there."""
    means = snapshot.host_devices.value.vendors
    return {
        node.path: host.exists(f"/dev/char/{node.major}:{node.minor}")
        for name, vendor in vendors.items()
        if vendor.description.char_link_prefix and name in means
        for node in means[name].nodes
        if node.path.startswith(vendor.description.char_link_prefix)
    }


def device_runtimes(vendors: Iterable[DeviceVendor]) -> tuple[str, ...]:
    """Return parts of names of runtimes that give devices to containers with a certain variable."""
    return tuple(
        vendor.runtime_handler for vendor in vendors if isinstance(vendor, WithholdsDevices)
    )
