"""Checks of the way into containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.doctor.base import Facts, Finding, Result
from agent.grants.check import NOT_LISTED
from agent.model.grant.refusal import Refusal

MAX_SEEN = 300  # characters of a list of devices
HAMI_LIBRARY = "/usr/local/vgpu/libvgpu.so"
HAMI_LOCK = "/tmp/vgpulock"  # noqa: S108 - where HAMi-core looks for it
_WITHOUT = (
    "without NRI a grant's devices cannot be put into containers; only CPUs and limits are set, "
    "after the start"
)
_VENDOR_RUNTIMES = ("nvidia", "ascend", "cambricon")


def agent(facts: Facts) -> Iterator[Finding]:
    """Say whether an agent answers on this node."""
    if not facts.live:
        return
    if facts.agent is not None and not facts.agent_why:
        yield Finding(id="agent", result=Result.OK, seen="answers")
        return
    if facts.agent is not None:
        yield Finding(
            id="agent",
            result=Result.WARN,
            seen=facts.agent_why,
            why="devices are checked by a new discovery, which knows no event and no earlier fault",
            do="run the doctor of the agent's own version: kubectl exec POD -- xpu-agent doctor",
        )
        return
    yield Finding(
        id="agent",
        result=Result.WARN,
        seen=facts.agent_why or "none answers",
        why="checks of what it does now are skipped",
        do="start it, or name its settings with --config",
    )


def nri(facts: Facts) -> Iterator[Finding]:
    """Say whether the container runtime can ask the agent, and does."""
    settings = facts.settings.nri
    runtime = facts.part("runtime")
    state = str(runtime.get("state", ""))
    there = settings.socket in facts.paths
    if state == "synchronized":
        seen = f"{runtime.get('runtime')} {runtime.get('version')} asks the agent"
        yield Finding(id="nri", result=Result.OK, seen=seen)
        return
    if skipped := _no_nri(facts, there=there, dialled=state in ("waiting", "refused")):
        yield _unasked(facts, skipped)
        return
    disabled = [one.name for one in facts.runtimes if one.nri_disabled]
    if disabled:
        seen = f"{disabled[0]} has NRI switched off in its settings"
    elif not there:
        seen = f"{settings.socket} is not there"
    else:
        why = ": ".join(str(runtime[key]) for key in ("reason", "message") if runtime.get(key))
        seen = f"{settings.socket} is there; the agent is {state or 'not asked'} {why}".strip()
    yield Finding(
        id="nri",
        result=Result.WARN if there and not disabled and state != "refused" else Result.FAIL,
        seen=seen,
        why=_WITHOUT,
        do='containerd: [plugins."io.containerd.nri.v1.nri"] disable = false; '
        "cri-o: enable_nri = true; then restart it",
    )


def _no_nri(facts: Facts, *, there: bool, dialled: bool) -> str:
    """Return why nobody expects a runtime to ask; empty where one should."""
    if not facts.live:
        return "a recorded host"
    if facts.settings.nri.attach == "off":
        return "nri.attach is off"
    if not (facts.runtimes or there or dialled):
        return "no container runtime is seen to run here"
    return ""


def _unasked(facts: Facts, why: str) -> Finding:
    """Return that no runtime asks: bad news where pods were granted devices."""
    pods = facts.part("grants").get("pods")
    rows = pods.values() if isinstance(pods, Mapping) else ()
    count = sum(isinstance(row, Mapping) and not row.get("refusal") for row in rows)
    if not count:
        return Finding(id="nri", result=Result.SKIP, seen=why)
    words = "1 pod has" if count == 1 else f"{count} pods have"
    return Finding(
        id="nri",
        result=Result.WARN,
        seen=f"{why}; {words} a grant of devices",
        why=_WITHOUT,
        do="set nri.attach: auto, and switch NRI on in the container runtime",
    )


def cdi(facts: Facts) -> Iterator[Finding]:
    """Name what is wrong on this host with what containers are given."""
    problems = facts.snapshot.means.value.problems
    for reason, message in problems:
        yield Finding(
            id="means",
            result=Result.WARN,
            seen=f"{reason}: {message}",
            why="what is described there is not given to containers",
            do="mend or remove what is named",
        )
    if not problems and facts.snapshot.means.value.vendors:
        yield Finding(id="means", result=Result.OK, seen="nothing stale, nothing unreadable")


def hami(facts: Facts) -> Iterator[Finding]:
    """Say whether cards can be shared by HAMi-core."""
    library, lock = HAMI_LIBRARY in facts.paths, HAMI_LOCK in facts.paths
    if not library:
        return  # nobody installed it; a pod that asks for it is refused, and told why
    yield Finding(
        id="hami-core",
        result=Result.OK if lock else Result.WARN,
        seen=f"{HAMI_LIBRARY}, {HAMI_LOCK}" if lock else f"{HAMI_LOCK} is not there",
        why="" if lock else "processes of pods that share a card cannot lock",
        do="" if lock else "the agent makes it with the first such pod; else mkdir -m 1777",
    )


def ungranted(facts: Facts) -> Iterator[Finding]:
    """Say whether containers can help themselves to devices."""
    handlers = {host.default_handler for host in facts.snapshot.means.value.vendors.values()} - {""}
    ours = [name for name in handlers if any(word in name for word in _VENDOR_RUNTIMES)]
    if not ours:
        return
    void = facts.settings.hooks.ungranted == "void"
    yield Finding(
        id="ungranted",
        result=Result.OK if void else Result.WARN,
        seen=f"the default runtime is {ours[0]}, hooks.ungranted is "
        f"{facts.settings.hooks.ungranted}",
        why=""
        if void
        else "an image that sets NVIDIA_VISIBLE_DEVICES=all (every CUDA image) or its kin gets "
        "every card without a grant",
        do="" if void else "set hooks.ungranted: void",
    )


def kubelet(facts: Facts) -> Iterator[Finding]:
    """Say how each resource stands with the kubelet."""
    served = facts.part("served")
    rows, exchanged = served.get("resources"), _exchanged(served.get("held"))
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        seen = f"{row.get('state')} {row.get('reason', '')} {row.get('message', '')}".strip()
        if pairs := exchanged.get(str(row.get("name"))):
            told = ", ".join(f"{given} in place of {name}" for name, given in sorted(pairs))
            seen = f"{seen}; exchanged: {told[:MAX_SEEN]}"
        if row.get("state") != "watched":
            yield Finding(
                id=f"kubelet:{row.get('name')}",
                result=Result.FAIL,
                seen=seen,
                why="pods that ask for the resource are not admitted",
                do="see the message; the agent goes on trying",
            )
        elif withdrawn := row.get("withdrawn_ids"):
            ids = ", ".join(map(str, withdrawn)) if isinstance(withdrawn, list) else ""
            yield Finding(
                id=f"kubelet:{row.get('name')}",
                result=Result.WARN,
                seen=f"{seen}; withdrawn: {ids[:MAX_SEEN]}",
                why="pods have these devices and the kubelet does not know: it would give them to "
                "other pods",
                do="nothing: they come back when those pods end; to avoid it, let pods with a "
                "grant ask for the kubelet's resource, too, or offer it no devices that a "
                "scheduler grants",
            )
        else:
            yield Finding(id=f"kubelet:{row.get('name')}", result=Result.OK, seen=seen)


def _exchanged(held: object) -> Mapping[str, set[tuple[str, str]]]:
    """Return what containers have in place of what the kubelet accounts, by resource."""
    found: dict[str, set[tuple[str, str]]] = {}
    for row in held if isinstance(held, list) else ():
        pairs = row.get("exchanges") if isinstance(row, Mapping) else None
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2:
                found.setdefault(str(row["resource"]), set()).add((str(pair[0]), str(pair[1])))
    return found


def grants(facts: Facts) -> Iterator[Finding]:
    """Name pods whose grant was refused, and pods whose requests are unknown."""
    pods = facts.part("grants").get("pods")
    for row in pods.values() if isinstance(pods, Mapping) else ():
        if not isinstance(row, Mapping):
            continue
        refusal = row.get("refusal")
        if refusal == Refusal.REQUESTS_UNKNOWN.value or row.get("awaits_requests"):
            yield Finding(
                id=_grant_id(row),
                result=Result.WARN,
                seen=NOT_LISTED,
                why="a new container of it gets no device: anybody can write the annotation",
                do="let the agent reach the API server or the kubelet",
            )
        elif refusal:
            forged = refusal == Refusal.NOT_ASKED_FOR.value
            yield Finding(
                id=_grant_id(row),
                result=Result.FAIL,
                seen=str(row.get("message")),
                why="its containers are not started",
                do="delete the pod; daemonset/policy/grants lets only schedulers write grants"
                if forged
                else "delete the pod, so that the scheduler grants anew",
            )


def _grant_id(row: Mapping[str, object]) -> str:
    return f"grant:{row.get('namespace')}/{row.get('name')}"


_LOST = "the device cgroup denies"
_RELOADED = "systemd was reloaded"
_LINKS = "nvidia-ctk system create-dev-char-symlinks --create-all, or a udev rule, makes the links"
_CREATED = "what a container is created with cannot be changed later"


def proof(facts: Facts) -> Iterator[Finding]:
    """Report running containers that lack a device, or have one of another pod."""
    found = facts.part("proof").get("containers")
    rows = (
        [row for row in found.values() if isinstance(row, Mapping)]
        if isinstance(found, Mapping)
        else []
    )
    wrong = [one for row in rows for one in _container(row)]
    yield from wrong
    if rows and not wrong:
        verified = sum(row.get("verdict") == "verified" for row in rows)
        seen = f"{verified} of {len(rows)} containers with devices were seen to have them"
        yield Finding(id="containers", result=Result.OK, seen=seen)


def _container(row: Mapping[object, object]) -> Iterator[Finding]:
    verdict, details = row.get("verdict"), row.get("details")
    words = "; ".join(map(str, details)) if isinstance(details, list) else ""
    if verdict == "excess":
        why = "the container can use a device of another pod, or one that nobody accounts to it"
        do = "see what names the device: the pod's spec, its runtime or a CDI file; delete the pod"
    elif verdict == "missing" and _LOST in words:
        why = "systemd or somebody else wrote the container's device rules anew"
        do = f"{_LINKS}, so that systemd keeps the rules; then delete the pod"
    elif verdict == "missing":
        why = "it was created while the agent was away, or something else changed it"
        do = f"delete the pod: {_CREATED}"
    elif verdict == "unknown" and _RELOADED in words:
        why = "cgroup 2 does not show device rules, and systemd keeps those of linked devices only"
        do = f"{_LINKS}; delete the pod if it has lost its device"
    else:
        return
    yield Finding(
        id=f"container:{row.get('namespace')}/{row.get('pod')}/{row.get('container')}",
        result=Result.WARN if verdict == "unknown" else Result.FAIL,
        seen=f"{verdict}: {words}",
        why=why,
        do=do,
    )


def protobuf(facts: Facts) -> Iterator[Finding]:
    """Say whether messages of the runtime are decoded by compiled code."""
    fast = facts.protobuf != "python"
    yield Finding(
        id="protobuf",
        result=Result.OK if fast else Result.FAIL,
        seen=facts.protobuf,
        why="" if fast else "a list of the runtime takes a second to decode: it hangs up after two",
        do="" if fast else "install protobuf's wheel for this platform",
    )


CHECKS = (agent, nri, cdi, hami, ungranted, kubelet, grants, proof, protobuf)
PATHS = (HAMI_LIBRARY, HAMI_LOCK)
