"""Answers filter, prioritize and preempt of kube-scheduler from the state of the cluster."""

from __future__ import annotations

import logging
from itertools import repeat

from agent.clock import Clock
from plugins.scheduler.decisions import DecisionMaker, PodAnswer, refuse_all
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.gangs import gang_of
from plugins.scheduler.load.node_loads import NodeLoads
from plugins.scheduler.load.pod_load import decode_pod_load
from plugins.scheduler.numa.cpu_request import PodRequest, pod_request
from plugins.scheduler.pod_object import SchedulerPod
from plugins.scheduler.server.decision_log import DecisionLog, bind_record, filter_record
from plugins.scheduler.server.extender_wire import (
    BindRequest,
    NodesRequest,
    NodeVictims,
    PreemptionRequest,
    encode_filter_error,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)

log = logging.getLogger(__name__)


class Extender:
    """The decisions of one cluster. For one thread."""

    def __init__(
        self,
        decisions: DecisionMaker,
        clock: Clock,
        loads: NodeLoads | None = None,
        *,
        device_weight: int = 1,
    ) -> None:
        """Start with an empty log. `loads` adds scores, beside which the devices' has a weight."""
        self.log = DecisionLog()
        self.logged_scores = 0  # best nodes of each pod that are logged
        self._loads = loads
        self._device_weight = device_weight
        self._decisions = decisions
        self._clock = clock

    def filter(self, request: NodesRequest) -> bytes:
        """Return the nodes that have the devices for the pod, and why others do not."""
        requested, answer = self._decide(request)
        if requested is None and not answer.invalid:
            return encode_filter_result(request, request.names, {}, {})
        if self._loads is not None and requested is not None:
            busy = self._loads.refusals(decode_pod_load(request.pod_json), answer.fitting())
            answer = answer.with_refusals(busy)
        resources = requested.resources if requested is not None else ()
        note = self._gang_note(request.pod)
        record = filter_record(request.pod.key, resources, answer, self._clock.wall(), note)
        self.log.record(record)
        if answer.error:
            return encode_filter_error(answer.error)
        return encode_filter_result(
            request,
            answer.fitting(),
            answer.refused(is_final=False, note=note),
            answer.refused(is_final=True, note=note),
        )

    def prioritize(self, request: NodesRequest) -> bytes:
        """Return the scores of the nodes; 0 for all if every node is suitable."""
        requested, answer = self._decide(request)
        if requested is None:
            return encode_priorities(request.names, repeat(0, len(request.names)))
        if self._loads is None and not self.logged_scores:
            return encode_priorities(request.names, answer.scores_in_order())
        scores = answer.scores()
        if self._loads is not None:
            pod = decode_pod_load(request.pod_json)
            scores = self._loads.combined_scores(pod, scores, self._device_weight)
        if self.logged_scores:
            best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
            key = request.pod.key
            extra = {"pod": f"{key.namespace}/{key.name}", "best": best[: self.logged_scores]}
            log.info("scores", extra=extra)
        return encode_priorities(request.names, (scores.get(name, 0) for name in request.names))

    def record_binding(self, request: BindRequest, error: str, outcome: str) -> None:
        """Store the outcome of a binding, for people who want to know why their pod waits."""
        self.log.count_binding(outcome)
        self.log.record(bind_record(request, error, self._clock.wall()))

    def preempt(self, request: PreemptionRequest) -> bytes:
        """Return the nodes on which the pod fits without the victims.

        Victims are not changed: kube-scheduler chose them for all resources that it counts itself.
        A node without a victim is left out, because kube-scheduler refuses it.
        """
        try:
            requested = pod_request(request.pod)
        except InvalidRequest:
            return encode_preemption_result({})
        nodes: dict[str, NodeVictims] = {}
        for name, victims in request.victims.items():
            without = (*victims.uids, request.pod.key.uid)  # what is held for the pod is its own
            if victims.uids and self._decisions.fits_without(requested, name, without):
                nodes[name] = victims
        return encode_preemption_result(nodes)

    def _gang_note(self, pod: SchedulerPod) -> str:
        """Return what a member of a gang should know; empty for others and for planned ones."""
        gang = gang_of(pod)
        if gang is None or self._decisions.is_planned(pod.key.uid):
            return ""
        return f"{gang}: its pods are placed one by one"

    def _decide(self, request: NodesRequest) -> tuple[PodRequest | None, PodAnswer]:
        """Return the request and the answers.

        No request for a pod for which every node is suitable.
        """
        try:
            requested = pod_request(request.pod)
        except InvalidRequest as error:
            return None, refuse_all(request.names, str(error))
        if not self._decisions.is_concerned(requested):
            return None, PodAnswer(names=(), signatures=(), answers={})
        return requested, self._decisions.decide(requested, request.names, request.pod.key.uid)
