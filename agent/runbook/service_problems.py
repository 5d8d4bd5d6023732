"""Problems of the agent's services: cluster, containers, files, collectors, own checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.runbook.problem import Problem, ProblemContext, Severity, SubjectKind, name_some
from agent.runbook.self_checks import host_parts, is_watch_failing, loop_checks, part_check
from agent.snapshot.allocation import ContainerVerification, VerificationCause, VerificationStatus
from agent.snapshot.cluster import (
    ANOTHER_MACHINE,
    KUBELET_OK,
    ApiSessionStatus,
    ClusterServiceStatus,
    WatchPhase,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import WriterPhase
from agent.snapshot.self_check import SelfCheck

MAX_CLOCK_SKEW_S = 5.0
_WATCH_REASONS = {
    WatchPhase.FORBIDDEN: "WatchForbidden",
    WatchPhase.ABSENT: "WatchAbsent",
}
_WRITER_REASONS = {
    WriterPhase.IN_CONFLICT: "WriteConflict",
    WriterPhase.FORBIDDEN: "WriteForbidden",
    WriterPhase.REFUSED: "WriteRefused",
    WriterPhase.ABSENT: "ResourceMissing",
    WriterPhase.PENDING: "ObjectNotWritten",
}
# a publisher, the devices' loop and vendors have problems of their own, with more facts
_OTHERWISE_LISTED = ("publisher:", "vendor:", "devices")


def own_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the problems of the agent's own loops, parts and files."""
    for loop, check in zip(snapshot.loops, loop_checks(snapshot.loops, context.now_s), strict=True):
        if not check.ok:
            yield _check_problem(check, context, context.wall_time(loop.last_success_s))
    for name, part in host_parts(snapshot):
        check = part_check(name, part)
        if not check.ok:
            yield _check_problem(check, context, context.wall_time(part.taken_s))
    for check in snapshot.checks:
        if not check.ok and not check.name.startswith(_OTHERWISE_LISTED):
            yield _check_problem(check, context, None)


def _check_problem(check: SelfCheck, context: ProblemContext, since_s: float | None) -> Problem:
    return context.problem(
        SubjectKind.AGENT,
        check.name,
        Severity.CRITICAL if check.gates_ready else Severity.WARNING,
        check.reason or "SelfCheckFailed",
        check.message,
        since_s=since_s,
    )


def cluster_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the problems with the Node, the API server and the kubelet."""
    status = snapshot.cluster_service
    if status is None:
        return
    permission = status.write_permission
    if permission.reason:
        gates = permission.reason == ANOTHER_MACHINE
        refused = Severity.CRITICAL if gates else Severity.WARNING
        yield context.problem(
            SubjectKind.NODE,
            snapshot.node.name,
            Severity.INFO if permission.is_allowed else refused,
            permission.reason,
            permission.message,
        )
    yield from _session_problems(status.session, context)
    yield from _watch_problems(status, context)
    yield from _kubelet_problems(status, context)
    if status.events is not None and status.events.error:
        yield context.problem(
            SubjectKind.API_SERVER,
            "events",
            Severity.WARNING,
            "EventsNotWritten",
            status.events.error,
        )


def _session_problems(session: ApiSessionStatus, context: ProblemContext) -> Iterator[Problem]:
    if session.reachable is False:
        yield context.problem(
            SubjectKind.API_SERVER,
            "session",
            Severity.WARNING,
            "ApiServerUnreachable",
            session.last_error,
            since_s=context.wall_time(session.last_answer_s),
        )
    skew_s = session.clock_skew_s or 0.0
    if abs(skew_s) >= MAX_CLOCK_SKEW_S:
        message = f"the API server's clock is {skew_s:+.0f} s from the node's"
        yield context.problem(
            SubjectKind.API_SERVER, "clock", Severity.WARNING, "ClockSkew", message
        )


def _watch_problems(status: ClusterServiceStatus, context: ProblemContext) -> Iterator[Problem]:
    for watch in status.watches:
        if is_watch_failing(watch):
            yield context.problem(
                SubjectKind.API_SERVER,
                f"watch:{watch.resource}",
                Severity.WARNING,
                _WATCH_REASONS.get(watch.phase, "WatchFailing"),
                watch.last_error,
                since_s=context.wall_time(watch.last_contact_s),
            )


def _kubelet_problems(status: ClusterServiceStatus, context: ProblemContext) -> Iterator[Problem]:
    kubelet, proxy = status.kubelet, status.proxy
    if kubelet is not None and kubelet.pods != KUBELET_OK:
        reason = f"Kubelet{kubelet.pods.capitalize()}"
        asks = context.has_action("", reason, kubelet.detail)
        yield context.problem(
            SubjectKind.KUBELET,
            "pods",
            Severity.WARNING if asks else Severity.INFO,
            reason,
            kubelet.detail,
            since_s=context.wall_time(kubelet.since_s),
        )
    if proxy is not None and not proxy.is_serving:
        yield context.problem(
            SubjectKind.KUBELET,
            "pod-resources-proxy",
            Severity.WARNING,
            "PodResourcesProxyDown",
            proxy.error,
        )


def object_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the objects that are not written."""
    if snapshot.cluster_service is None:
        for publisher in snapshot.publishers:
            if publisher.error:
                yield context.problem(
                    SubjectKind.OBJECT,
                    publisher.name,
                    Severity.CRITICAL,
                    "ObjectNotWritten",
                    publisher.error,
                    since_s=publisher.last_success_s,
                )
        return
    for writer in snapshot.cluster_service.writers:
        if writer.is_behind or writer.phase is WriterPhase.ABSENT:
            yield context.problem(
                SubjectKind.OBJECT,
                f"{writer.kind}/{writer.name}",
                Severity.INFO if writer.phase is WriterPhase.ABSENT else Severity.WARNING,
                _WRITER_REASONS[writer.phase],
                writer.error,
                since_s=writer.pending_since_s,
            )


def container_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the problems with the runtime, resources at the kubelet, and containers."""
    yield from _runtime_problems(snapshot, context)
    for resource in snapshot.served.value.resources:
        if resource.state != "watched":
            yield context.problem(
                SubjectKind.RESOURCE,
                resource.name,
                Severity.CRITICAL,
                resource.reason or "ResourceNotServed",
                f"{resource.state}: {resource.message}".removesuffix(": "),
            )
        if resource.withdrawn_ids:
            yield context.problem(
                SubjectKind.RESOURCE,
                resource.name,
                Severity.INFO,
                "DeviceWithdrawn",
                name_some(list(resource.withdrawn_ids)),
            )
    service = snapshot.container_service
    for vendor, problem in service.offer_problems if service is not None else ():
        yield context.problem(
            SubjectKind.VENDOR,
            vendor,
            Severity.WARNING,
            problem.reason,
            problem.message,
            vendor=vendor,
        )
    if service is not None and service.cdi_problem:
        yield context.problem(
            SubjectKind.AGENT,
            "cdi-files",
            Severity.WARNING,
            "CdiFileNotWritten",
            service.cdi_problem,
        )
    yield from _allocation_problems(snapshot, context)


def _runtime_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    runtime, service = snapshot.runtime.value, snapshot.container_service
    if service is not None and service.nri is not None and not runtime.is_synchronized:
        reason = runtime.reason or "RuntimeDoesNotAsk"
        asks = context.has_action("", reason, runtime.message)
        yield context.problem(
            SubjectKind.RUNTIME,
            runtime.runtime or "nri",
            Severity.CRITICAL if asks else Severity.WARNING,
            reason,
            f"{runtime.state}: {runtime.message}".removesuffix(": "),
            since_s=runtime.turned_s,
        )
    names: dict[str, list[str]] = {}
    for key, reason in runtime.missed.items():
        container, sandbox = runtime.containers.get(key), runtime.sandboxes.get(key)
        if container is not None:
            sandbox = runtime.sandboxes.get(container.sandbox_id)
        pod = f"{sandbox.namespace}/{sandbox.name}" if sandbox is not None else key
        names.setdefault(reason, []).append(f"{pod}/{container.name}" if container else pod)
    for reason, subjects in sorted(names.items()):
        yield context.problem(
            SubjectKind.CONTAINER,
            "missed",
            Severity.WARNING,
            reason,
            name_some(sorted(subjects)),
            name=f"{len(subjects)} pods and containers",
        )


def _allocation_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    for allocation in snapshot.allocations.value.pods.values():
        if allocation.refusal:
            yield context.problem(
                SubjectKind.ALLOCATION,
                f"{allocation.namespace}/{allocation.name}",
                Severity.CRITICAL,
                allocation.refusal,
                allocation.message,
            )
        elif allocation.awaits_requests:
            yield context.problem(
                SubjectKind.ALLOCATION,
                f"{allocation.namespace}/{allocation.name}",
                Severity.WARNING,
                "PodRequestsUnknown",
                allocation.message,
            )
    for verification in snapshot.verification.value.containers.values():
        reason = verification_reason(verification)
        if reason:
            wrong = verification.verdict.is_wrong
            yield context.problem(
                SubjectKind.CONTAINER,
                f"{verification.namespace}/{verification.pod}/{verification.container}",
                Severity.CRITICAL if wrong else Severity.WARNING,
                reason,
                "; ".join(verification.details),
            )


def verification_reason(verification: ContainerVerification) -> str:
    """Return the reason of a verdict on a container; empty if there is nothing to do."""
    causes = verification.causes
    if verification.verdict is VerificationStatus.EXCESS:
        return "DeviceExcess"
    if verification.verdict is VerificationStatus.MISSING:
        denied = VerificationCause.DEVICE_DENIED
        return denied.value if denied in causes else "DeviceMissing"
    reloaded = VerificationCause.SYSTEMD_RELOADED
    is_unknown = verification.verdict is VerificationStatus.UNKNOWN
    return reloaded.value if is_unknown and reloaded in causes else ""


def file_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the problems of files of pods and of the node, and of collectors."""
    view = snapshot.enforcement.value
    for condition in view.conditions:
        yield context.problem(
            SubjectKind.FILES,
            condition.reason,
            Severity.WARNING,
            condition.reason,
            condition.message,
            since_s=view.turned_s,
        )
    for collector in snapshot.usage.value.collectors:
        for problem in collector.problems:
            asks = context.has_action("", problem.reason, problem.message)
            yield context.problem(
                SubjectKind.COLLECTOR,
                collector.name,
                Severity.WARNING if asks else Severity.INFO,
                problem.reason,
                problem.message,
                since_s=collector.last_success_s,
            )
