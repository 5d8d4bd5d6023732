"""Checks of the container runtime, the device plug-in and allocations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.allocation.check import POD_NOT_LISTED
from agent.doctor.check import CheckInputs, CheckResult, CheckStatus
from agent.snapshot.allocation import RefusalReason, VerificationCause

MAX_LIST_CHARACTERS = 300  # characters of a list of devices
HAMI_LIBRARY = "/usr/local/vgpu/libvgpu.so"
HAMI_LOCK = "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for it
_WITHOUT_NRI = (
    "without NRI a grant's devices cannot be put into containers; only CPUs and limits are set, "
    "after the start"
)


def check_agent(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether an agent answers on this node."""
    if not facts.is_live:
        return
    if facts.agent is not None and not facts.agent_problem:
        yield CheckResult(id="agent", status=CheckStatus.OK, observation="answers")
        return
    if facts.agent is not None:
        yield CheckResult(
            id="agent",
            status=CheckStatus.WARN,
            observation=facts.agent_problem,
            impact="devices are checked by a new discovery, which has seen no earlier fault",
            remedy="run the doctor of the agent's version: kubectl exec POD -- xpu-agent doctor",
        )
        return
    yield CheckResult(
        id="agent",
        status=CheckStatus.WARN,
        observation=facts.agent_problem or "none answers",
        impact="checks of what it does now are skipped",
        remedy="start it, or name its settings with --config",
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
        )
    if not problems and facts.snapshot.host_devices.value.vendors:
        yield CheckResult(
            id="means", status=CheckStatus.OK, observation="nothing stale, nothing unreadable"
        )


def check_hami(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether cards can be shared by HAMi-core."""
    library, lock = HAMI_LIBRARY in facts.paths, HAMI_LOCK in facts.paths
    if not library:
        return  # it is not installed; a pod that requests it is refused with a reason
    yield CheckResult(
        id="hami-core",
        status=CheckStatus.OK if lock else CheckStatus.WARN,
        observation=f"{HAMI_LIBRARY}, {HAMI_LOCK}" if lock else f"{HAMI_LOCK} is not there",
        impact="" if lock else "processes of pods that share a card cannot lock",
        remedy="" if lock else "the agent makes it with the first such pod; else mkdir -m 1777",
    )


def check_default_runtime(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether containers can get devices without an allocation."""
    handlers = {
        host.default_handler for host in facts.snapshot.host_devices.value.vendors.values()
    } - {""}
    agent_runtimes = [
        name for name in handlers if any(word in name for word in facts.device_runtimes)
    ]
    if not agent_runtimes:
        return
    void = facts.settings.hooks.ungranted == "void"
    yield CheckResult(
        id="ungranted",
        status=CheckStatus.OK if void else CheckStatus.WARN,
        observation=f"the default runtime is {agent_runtimes[0]}, hooks.ungranted is "
        f"{facts.settings.hooks.ungranted}",
        impact=""
        if void
        else "an image that sets NVIDIA_VISIBLE_DEVICES=all (every CUDA image) or its kin gets "
        "every card without a grant",
        remedy="" if void else "set hooks.ungranted: void",
    )


def check_kubelet_resources(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report the state of each resource at the kubelet."""
    served = facts.container_part("served")
    rows, exchanged = served.get("resources"), _device_exchanges(served.get("held"))
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        observation = f"{row.get('state')} {row.get('reason', '')} {row.get('message', '')}".strip()
        if pairs := exchanged.get(str(row.get("name"))):
            exchanges = ", ".join(
                f"{replacement} in place of {name}" for name, replacement in sorted(pairs)
            )
            observation = f"{observation}; exchanged: {exchanges[:MAX_LIST_CHARACTERS]}"
        if row.get("state") != "watched":
            yield CheckResult(
                id=f"kubelet:{row.get('name')}",
                status=CheckStatus.FAIL,
                observation=observation,
                impact="pods that ask for the resource are not admitted",
                remedy="see the message; the agent goes on trying",
            )
        elif withdrawn := row.get("withdrawn_ids"):
            ids = ", ".join(map(str, withdrawn)) if isinstance(withdrawn, list) else ""
            yield CheckResult(
                id=f"kubelet:{row.get('name')}",
                status=CheckStatus.WARN,
                observation=f"{observation}; withdrawn: {ids[:MAX_LIST_CHARACTERS]}",
                impact="pods have these devices and the kubelet does not know: it would give them "
                "to "
                "other pods",
                remedy="nothing: they come back when those pods end; to avoid it, let pods with a "
                "grant ask for the kubelet's resource, too, or offer it no devices that a "
                "scheduler grants",
            )
        else:
            yield CheckResult(
                id=f"kubelet:{row.get('name')}", status=CheckStatus.OK, observation=observation
            )


def _device_exchanges(allocation: object) -> Mapping[str, set[tuple[str, str]]]:
    """Return the devices that containers have instead of the kubelet's choice, by resource."""
    exchanges: dict[str, set[tuple[str, str]]] = {}
    for row in allocation if isinstance(allocation, list) else ():
        pairs = row.get("exchanges") if isinstance(row, Mapping) else None
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2:
                exchanges.setdefault(str(row["resource"]), set()).add((str(pair[0]), str(pair[1])))
    return exchanges


def check_allocations(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report pods whose allocation was refused, and pods whose requests are unknown."""
    pods = facts.container_part("grants").get("pods")
    for row in pods.values() if isinstance(pods, Mapping) else ():
        if not isinstance(row, Mapping):
            continue
        refusal = row.get("refusal")
        if refusal == RefusalReason.REQUESTS_UNKNOWN.value or row.get("awaits_requests"):
            yield CheckResult(
                id=_pod_check_id(row),
                status=CheckStatus.WARN,
                observation=POD_NOT_LISTED,
                impact="a new container of it gets no device: anybody can write the annotation",
                remedy="let the agent reach the API server or the kubelet",
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


def check_protobuf(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether messages of the runtime are decoded by compiled code."""
    fast = facts.protobuf != "python"
    yield CheckResult(
        id="protobuf",
        status=CheckStatus.OK if fast else CheckStatus.FAIL,
        observation=facts.protobuf,
        impact=""
        if fast
        else "a list of the runtime takes a second to decode: it hangs up after two",
        remedy="" if fast else "install protobuf's wheel for this platform",
    )


CHECKS = (
    check_agent,
    check_nri,
    check_host_devices,
    check_hami,
    check_default_runtime,
    check_kubelet_resources,
    check_allocations,
    check_containers,
    check_protobuf,
)
CHECKED_PATHS = (HAMI_LIBRARY, HAMI_LOCK)
