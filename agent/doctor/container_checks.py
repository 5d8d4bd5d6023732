"""Checks of the container runtime, CDI files, allocations and running containers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.allocation.cdi_spec_reader import CDI_FOLDERS
from agent.allocation.check import POD_NOT_LISTED
from agent.doctor.check import (
    NO_DEVICE,
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    CheckStatus,
    count_of,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.snapshot.allocation import RefusalReason, VerificationCause

OLDEST_RUNTIMES = {"containerd": (1, 7), "cri-o": (1, 26)}
_VERSION = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,3})")
HAMI_LIBRARY = "/usr/local/vgpu/libvgpu.so"
HAMI_LOCK = "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for it
_WITHOUT_NRI = (
    "without NRI a grant's devices cannot be put into containers; only CPUs and limits are set, "
    "after the start"
)


def check_nri(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the container runtime can call the agent, and does."""
    settings = facts.settings.nri
    runtime = facts.container_part("runtime")
    state = str(runtime.get("state", ""))
    there = settings.socket in facts.paths
    if state == "synchronized":
        observation = f"{runtime.get('runtime')} {runtime.get('version')} asks the agent"
        yield CheckResult(id="nri", status=CheckStatus.OK, observation=observation)
        return
    if skipped := _nri_absence(facts, there=there, dialled=state in ("waiting", "refused")):
        yield _nri_absent_result(facts, skipped)
        return
    disabled = [one.name for one in facts.runtimes if one.is_nri_disabled]
    if disabled:
        observation = f"{disabled[0]} has NRI switched off in its settings"
    elif not there:
        observation = f"{settings.socket} is not there"
    else:
        reason = ": ".join(str(runtime[key]) for key in ("reason", "message") if runtime.get(key))
        observation = (
            f"{settings.socket} is there; the agent is {state or 'not asked'} {reason}".strip()
        )
    yield CheckResult(
        id="nri",
        status=CheckStatus.WARN
        if there and not disabled and state != "refused"
        else CheckStatus.FAIL,
        observation=observation,
        impact=_WITHOUT_NRI,
        remedy='containerd: [plugins."io.containerd.nri.v1.nri"] disable = false; '
        "cri-o: enable_nri = true; then restart it",
    )


def _nri_absence(facts: CheckInputs, *, there: bool, dialled: bool) -> str:
    """Return why no runtime is expected to connect; empty if one is."""
    if not facts.is_live:
        return "a recorded host"
    if facts.settings.nri.attach == "off":
        return "nri.attach is off"
    if not (facts.runtimes or there or dialled):
        return "no container runtime is seen to run here"
    return ""


def _nri_absent_result(facts: CheckInputs, reason: str) -> CheckResult:
    """Return that no runtime calls the agent: a failure if pods have allocated devices."""
    pods = facts.container_part("grants").get("pods")
    rows = pods.values() if isinstance(pods, Mapping) else ()
    count = sum(isinstance(row, Mapping) and not row.get("refusal") for row in rows)
    if not count:
        return CheckResult(id="nri", status=CheckStatus.SKIP, observation=reason)
    message = "1 pod has" if count == 1 else f"{count} pods have"
    return CheckResult(
        id="nri",
        status=CheckStatus.WARN,
        observation=f"{reason}; {message} a grant of devices",
        impact=_WITHOUT_NRI,
        remedy="set nri.attach: auto, and switch NRI on in the container runtime",
    )


def check_host_devices(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report problems of this host with devices and files for containers."""
    problems = facts.snapshot.host_devices.value.problems
    for reason, message in problems:
        yield CheckResult(
            id="means",
            status=CheckStatus.WARN,
            observation=f"{reason}: {message}",
            impact="what is described there is not given to containers",
            remedy="mend or remove what is named",
            reason=reason,
            message=message,
        )
    if not problems and facts.snapshot.host_devices.value.vendors:
        yield CheckResult(
            id="means", status=CheckStatus.OK, observation="nothing stale, nothing unreadable"
        )


def check_hami(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether cards can be shared by HAMi-core."""
    library, lock = HAMI_LIBRARY in facts.paths, HAMI_LOCK in facts.paths
    if not library:  # a pod that requests it is refused with a reason
        if not facts.is_live:
            yield skip("hami-core", RECORDED)
        return
    yield CheckResult(
        id="hami-core",
        status=CheckStatus.OK if lock else CheckStatus.WARN,
        observation=f"{HAMI_LIBRARY}, {HAMI_LOCK}" if lock else f"{HAMI_LOCK} is not there",
        impact="" if lock else "processes of pods that share a card cannot lock",
        remedy="" if lock else "the agent makes it with the first such pod; else mkdir -m 1777",
    )


def check_default_runtime(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether containers can get devices without an allocation."""
    runtime = _device_runtime(facts)
    if not runtime:
        return
    void = facts.settings.hooks.ungranted == "void"
    yield CheckResult(
        id="ungranted",
        status=CheckStatus.OK if void else CheckStatus.WARN,
        observation=f"the default runtime is {runtime}, hooks.ungranted is "
        f"{facts.settings.hooks.ungranted}",
        impact=""
        if void
        else "an image that sets NVIDIA_VISIBLE_DEVICES=all (every CUDA image) or its kin gets "
        "every card without a grant",
        remedy="" if void else "set hooks.ungranted: void",
    )


def check_allocations(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report pods whose allocation was refused, and pods whose requests are unknown."""
    pods = facts.container_part("grants").get("pods")
    rows = [row for row in pods.values() if isinstance(row, Mapping)] if isinstance(
        pods, Mapping
    ) else []  # fmt: skip
    if rows and not any(row.get("refusal") or row.get("awaits_requests") for row in rows):
        yield ok("grants", f"{len(rows)} allocations are valid")
    for row in rows:
        refusal = row.get("refusal")
        if refusal == RefusalReason.REQUESTS_UNKNOWN.value or row.get("awaits_requests"):
            yield CheckResult(
                id=_pod_check_id(row),
                status=CheckStatus.WARN,
                observation=POD_NOT_LISTED,
                impact="a new container of it gets no device: anybody can write the annotation",
                remedy="let the agent reach the API server or the kubelet",
                reason=RefusalReason.REQUESTS_UNKNOWN.value,
                message=POD_NOT_LISTED,
            )
        elif refusal:
            forged = refusal == RefusalReason.NOT_ASKED_FOR.value
            yield CheckResult(
                id=_pod_check_id(row),
                status=CheckStatus.FAIL,
                observation=str(row.get("message")),
                impact="its containers are not started",
                remedy="delete the pod; daemonset/policy/grants lets only schedulers write grants"
                if forged
                else "delete the pod, so that the scheduler grants anew",
                reason=str(refusal),
                message=str(row.get("message")),
            )


def _pod_check_id(row: Mapping[str, object]) -> str:
    return f"grant:{row.get('namespace')}/{row.get('name')}"


_LINKS_REMEDY = (
    "nvidia-ctk system create-dev-char-symlinks --create-all, or a udev rule, makes the links"
)
_CREATION_ONLY = "what a container is created with cannot be changed later"


def check_containers(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report running containers that lack a device, or have a device of another pod."""
    containers = facts.container_part("proof").get("containers")
    rows = (
        [row for row in containers.values() if isinstance(row, Mapping)]
        if isinstance(containers, Mapping)
        else []
    )
    wrong = [one for row in rows for one in _container_results(row)]
    yield from wrong
    if rows and not wrong:
        verified = sum(row.get("verdict") == "verified" for row in rows)
        observation = f"{verified} of {len(rows)} containers with devices were seen to have them"
        yield CheckResult(id="containers", status=CheckStatus.OK, observation=observation)


def _container_results(row: Mapping[object, object]) -> Iterator[CheckResult]:
    verdict, details, causes = row.get("verdict"), row.get("details"), row.get("causes")
    known_causes = causes if isinstance(causes, list) else ()
    message = "; ".join(map(str, details)) if isinstance(details, list) else ""
    if verdict == "excess":
        reason = "the container can use a device of another pod, or one that nobody accounts to it"
        do = "see what names the device: the pod's spec, its runtime or a CDI file; delete the pod"
    elif verdict == "missing" and VerificationCause.DEVICE_DENIED.value in known_causes:
        reason = "systemd or somebody else wrote the container's device rules anew"
        do = f"{_LINKS_REMEDY}, so that systemd keeps the rules; then delete the pod"
    elif verdict == "missing":
        reason = "it was created while the agent was away, or something else changed it"
        do = f"delete the pod: {_CREATION_ONLY}"
    elif verdict == "unknown" and VerificationCause.SYSTEMD_RELOADED.value in known_causes:
        reason = (
            "cgroup 2 does not show device rules, and systemd keeps those of linked devices only"
        )
        do = f"{_LINKS_REMEDY}; delete the pod if it has lost its device"
    else:
        return
    yield CheckResult(
        id=f"container:{row.get('namespace')}/{row.get('pod')}/{row.get('container')}",
        status=CheckStatus.WARN if verdict == "unknown" else CheckStatus.FAIL,
        observation=f"{verdict}: {message}",
        impact=reason,
        remedy=do,
    )


def check_runtime(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the container runtime is one that has what the agent uses."""
    runtime = facts.container_part("runtime")
    name, text = str(runtime.get("runtime") or ""), str(runtime.get("version") or "")
    if not name:
        if not facts.is_live:
            yield skip("runtime", RECORDED)
        elif facts.runtimes:
            names = join_names([f"{one.name} (process {one.pid})" for one in facts.runtimes])
            yield skip("runtime", f"{names} runs; its version is not known without NRI")
        else:
            yield skip("runtime", "no container runtime is seen to run here")
        return
    version = _VERSION.match(text)
    oldest = OLDEST_RUNTIMES.get(name)
    if version is None or oldest is None:
        yield skip("runtime", f"{name} {text}: the agent has no table for it")
    elif (int(version[1]), int(version[2])) < oldest:
        yield warn(
            "runtime",
            f"{name} {text}",
            impact="its NRI lacks messages that the agent uses: some changes of containers are "
            "refused or left out",
            remedy=f"update it to {oldest[0]}.{oldest[1]} or later",
        )
    else:
        yield ok("runtime", f"{name} {text}")


def check_missed_containers(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether containers started without the answers of the agent's hooks."""
    runtime = facts.container_part("runtime")
    missed = runtime.get("missed")
    if not isinstance(missed, Mapping) or not runtime.get("runtime"):
        return
    if missed:
        yield warn(
            "missed-containers",
            f"{len(missed)} started while the agent was away or late",
            impact="their CPUs and limits were set after the start, and devices are missing",
            remedy="delete pods that lack a device; see the checks of containers",
        )
    else:
        yield ok("missed-containers", "none")


def check_cdi_folder(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the agent can write its CDI files, and runtimes read them."""
    if not facts.settings.cdi.write:
        yield skip("cdi-folder", "cdi.write is off")
        return
    folder = facts.folders.get("cdi.dir")
    if folder is None:
        yield skip("cdi-folder", RECORDED if not facts.is_live else "cdi.dir cannot be inspected")
        return
    impact = "containers get their devices by single nodes, without the driver's files"
    if folder.path not in CDI_FOLDERS and folder.path != "/run/cdi":
        yield warn(
            "cdi-folder",
            f"{folder.path} is not one of {join_names(list(CDI_FOLDERS))}",
            impact="runtimes do not read it, unless their settings name it (cdi_spec_dirs)",
            remedy="set cdi.dir to /var/run/cdi, or add the folder to the runtime's cdi_spec_dirs",
        )
    elif not folder.exists:
        yield skip("cdi-folder", f"{folder.path} is not there; the agent creates it")
    elif not folder.is_writable or folder.is_read_only:
        yield warn(
            "cdi-folder",
            f"{folder.path} cannot be written from here",
            impact=impact,
            remedy="mount the host's folder writable into the agent's pod, as daemonset/base does",
        )
    else:
        yield ok("cdi-folder", f"{folder.path} is writable")


def check_cdi_names(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether two CDI files define one name."""
    specs = {
        spec.path: spec
        for host in facts.snapshot.host_devices.value.vendors.values()
        for spec in host.cdi
    }
    if not specs:
        if not facts.is_live:
            yield skip("cdi-names", RECORDED)
        return
    owners: dict[str, list[str]] = {}
    for spec in specs.values():
        for device in spec.devices:
            owners.setdefault(f"{spec.kind}={device.name}", []).append(spec.path)
    doubled = {name: paths for name, paths in owners.items() if len(set(paths)) > 1}
    if doubled:
        name, paths = next(iter(doubled.items()))
        yield fail(
            "cdi-names",
            f"{len(doubled)} names are defined twice: {name} by {join_names(sorted(set(paths)))}",
            impact="runtimes refuse containers with such a name (conflicting CDI devices)",
            remedy="remove the older of the files; nvidia-ctk cdi generate wants one --output",
        )
    else:
        yield ok("cdi-names", f"{len(owners)} names in {len(specs)} files")


def check_cdi_enabled(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the runtime resolves CDI names, if the settings rely on that."""
    runtime = facts.container_part("runtime")
    wanted = facts.settings.device_plugin.injection == "cdi"
    if not runtime.get("runtime"):
        yield skip("cdi-enabled", "no runtime has told what it can do")
    elif runtime.get("takes_cdi"):
        yield ok("cdi-enabled", "the runtime resolves CDI names")
    elif wanted:
        yield fail(
            "cdi-enabled",
            "device_plugin.injection is cdi, and the runtime does not resolve CDI names",
            impact="containers with a device do not start",
            remedy="containerd before 2.0: enable_cdi = true; or set device_plugin.injection: auto",
        )
    else:
        yield ok("cdi-enabled", "the runtime does not, and the agent gives device nodes instead")


def _requests_absence(facts: CheckInputs) -> str:
    """Return why it is not known which devices containers request."""
    if not facts.is_live:
        return RECORDED
    if facts.cgroup_driver is None:
        return "there is no cgroup of pods"
    if not facts.vendors:
        return NO_DEVICE
    return "the environment of containers cannot be read: run it as root with hostPID"


def check_requests(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether running containers request devices by a variable, without an allocation."""
    if facts.requests is None:
        yield skip("image-devices", _requests_absence(facts))
        return
    runtime = _device_runtime(facts)
    allocated, pods = _allocated_pods(facts), _pod_names(facts)
    exempt = facts.settings.hooks.protected_namespaces
    loose = [
        f"{one.variable}={one.value} in {pods.get(one.pod_uid, ('', f'pod {one.pod_uid}'))[1]}"
        for one in facts.requests
        if one.pod_uid not in allocated and pods.get(one.pod_uid, ("", ""))[0] not in exempt
    ]
    if loose and runtime:
        yield warn(
            "image-devices",
            f"{join_names(loose, 4)}; the default runtime is {runtime}",
            impact="these containers have devices that the scheduler gives to others",
            remedy="set hooks.ungranted: void, or the variable to void in the pod's spec; then "
            "delete these pods",
        )
    elif loose:
        yield ok(
            "image-devices",
            f"{count_of(len(loose), 'container')} without an allocation, to which the default "
            "runtime gives nothing",
        )
    else:
        yield ok(
            "image-devices",
            f"{count_of(len(facts.requests), 'container')}, none without an allocation",
        )


def _device_runtime(facts: CheckInputs) -> str:
    """Return the default runtime if it gives devices by variables; else an empty text."""
    handlers = {
        host.default_handler for host in facts.snapshot.host_devices.value.vendors.values()
    } - {""}
    names = [name for name in handlers if any(word in name for word in facts.device_runtimes)]
    return names[0] if names else ""


def _pod_names(facts: CheckInputs) -> dict[str, tuple[str, str]]:
    """Return namespace and full name of the pods that the running agent knows, by uid."""
    value: object = facts.agent
    for name in ("parts", "pods", "value"):
        value = value.get(name) if isinstance(value, Mapping) else None
    rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    return {
        str(row.get("uid")): (
            str(row.get("namespace")),
            f"{row.get('namespace')}/{row.get('name')}",
        )
        for row in rows
    }


def _allocated_pods(facts: CheckInputs) -> set[str]:
    """Return the uids of pods with devices of a scheduler or of the kubelet."""
    pods = facts.container_part("grants").get("pods")
    uids = set(map(str, pods)) if isinstance(pods, Mapping) else set()
    held = facts.container_part("served").get("held")
    for row in held if isinstance(held, list) else ():
        if isinstance(row, Mapping):
            uids.add(str(row.get("pod_uid")))
    return uids


CHECKS = (
    Check(
        id="runtime",
        group=CheckGroup.RUNTIME,
        question="Has the container runtime what the agent uses?",
        run=check_runtime,
    ),
    Check(
        id="nri",
        group=CheckGroup.RUNTIME,
        question="Does the runtime ask the agent (NRI)?",
        run=check_nri,
    ),
    Check(
        id="missed-containers",
        group=CheckGroup.RUNTIME,
        question="Did all containers start with the answers of the agent?",
        run=check_missed_containers,
        absence="no runtime is connected",
    ),
    Check(
        id="ungranted",
        group=CheckGroup.RUNTIME,
        question="Do containers get devices only by an allocation (default runtime)?",
        run=check_default_runtime,
        absence="the default runtime gives no devices by variables, or is not known",
    ),
    Check(
        id="hami-core",
        group=CheckGroup.RUNTIME,
        question="Can pods that share a card by HAMi-core lock?",
        run=check_hami,
        absence="HAMi-core is not installed",
    ),
    Check(
        id="cdi-folder",
        group=CheckGroup.CDI,
        question="Can the agent write its CDI files where runtimes read them?",
        run=check_cdi_folder,
    ),
    Check(
        id="means",
        group=CheckGroup.CDI,
        question="Are all CDI files readable, and made for the loaded driver?",
        run=check_host_devices,
        absence="no vendor here gives devices to containers",
    ),
    Check(
        id="cdi-names",
        group=CheckGroup.CDI,
        question="Is each CDI name defined once?",
        run=check_cdi_names,
        absence="there is no CDI file",
    ),
    Check(
        id="cdi-enabled",
        group=CheckGroup.CDI,
        question="Does the runtime resolve CDI names, if settings rely on it?",
        run=check_cdi_enabled,
    ),
    Check(
        id="grants",
        group=CheckGroup.CONTAINERS,
        question="Is the allocation of each pod valid?",
        run=check_allocations,
        absence="no pod has an allocation, or no agent answers",
    ),
    Check(
        id="containers",
        group=CheckGroup.CONTAINERS,
        question="Has each running container its devices, and no others?",
        run=check_containers,
        absence="no running container has devices, or no agent answers",
    ),
    Check(
        id="image-devices",
        group=CheckGroup.CONTAINERS,
        question="Does no image take devices by a variable such as NVIDIA_VISIBLE_DEVICES=all?",
        run=check_requests,
    ),
)
CHECKED_PATHS = (HAMI_LIBRARY, HAMI_LOCK)
