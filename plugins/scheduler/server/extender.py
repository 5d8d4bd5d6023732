"""Answers filter, prioritize and preempt of kube-scheduler from the state of the cluster."""

from __future__ import annotations

from agent.clock import Clock
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker, NodeAnswer, PodAnswer
from plugins.scheduler.devices.requests import DeviceRequest, InvalidRequest
from plugins.scheduler.server.decision_log import DecisionLog, filter_record
from plugins.scheduler.server.extender_wire import (
    NodesRequest,
    NodeVictims,
    PreemptionRequest,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)


class Extender:
    """The decisions of one cluster. For one thread."""

    def __init__(self, state: ClusterState, decisions: DecisionMaker, clock: Clock) -> None:
        self.log = DecisionLog()
        self._state = state
        self._decisions = decisions
        self._clock = clock

    def filter(self, request: NodesRequest) -> bytes:
        """Return the nodes that can give the pod its devices, and why others cannot."""
        pod_request, answer = self._decide(request)
        if pod_request is None and not answer.invalid:
            return encode_filter_result(request, request.names, {}, {})
        resources = pod_request.resources if pod_request is not None else ()
        self.log.record(filter_record(request.pod.key, resources, answer, self._clock.wall()))
        kept: list[str] = []
        failed: dict[str, str] = {}
        final: dict[str, str] = {}
        for name, one in answer.nodes.items():
            if one.fits:
                kept.append(name)
            elif one.is_final:
                final[name] = one.reason
            else:
                failed[name] = one.reason
        return encode_filter_result(request, kept, failed, final)

    def prioritize(self, request: NodesRequest) -> bytes:
        """Return the scores of the nodes; 0 for all if the pod requests no device."""
        pod_request, answer = self._decide(request)
        if pod_request is None:
            return encode_priorities(dict.fromkeys(request.names, 0))
        scores = answer.scores()
        return encode_priorities({name: scores.get(name, 0) for name in request.names})

    def preempt(self, request: PreemptionRequest) -> bytes:
        """Return the nodes on which the pod fits once the victims are gone.

        Victims are not changed: kube-scheduler chose them for all that it counts itself. A node
        without a victim is left out, because kube-scheduler refuses it.
        """
        try:
            pod_request = request.pod.device_request()
        except InvalidRequest:
            return encode_preemption_result({})
        nodes: dict[str, NodeVictims] = {}
        for name, victims in request.victims.items():
            if not victims.uids:
                continue
            if pod_request is None or self._decisions.fits_without(pod_request, name, victims.uids):
                nodes[name] = victims
        return encode_preemption_result(nodes)

    def _decide(self, request: NodesRequest) -> tuple[DeviceRequest | None, PodAnswer]:
        try:
            pod_request = request.pod.device_request()
        except InvalidRequest as error:
            refused = NodeAnswer(str(error), is_final=True)
            nodes = dict.fromkeys(request.names, refused)
            return None, PodAnswer(nodes=nodes, invalid=str(error))
        if pod_request is None:
            return None, PodAnswer(nodes={})
        return pod_request, self._decisions.decide(pod_request, request.names)
