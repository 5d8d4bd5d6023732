"""How the cluster side does, as checks: for people and probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kube.watch.state import Phase
from agent.model.selfcheck import Check
from agent.node.identity import ANOTHER_MACHINE

if TYPE_CHECKING:
    from agent.daemon.cluster.side import ClusterSide
    from agent.kube.session.state import SessionState
    from agent.kube.watch.account import WatchState
    from agent.kubelet.base import KubeletState
    from agent.publish.eventing.sink import SinkState

KUBELET_OK = "ok"
# kinds that a cluster may lack: without koord-manager there is no NodeSLO; for an object that the
# agent writes, the check of its publisher reports the absent CRD
OPTIONAL = ("nodeslos", "nodemetrics", "devices", "noderesourcetopologies")


def cluster_checks(side: ClusterSide) -> list[Check]:
    """Return one check a part.

    Only a Node that is another machine's gates readiness: the rest comes back by itself, and an
    agent taken out of service meanwhile would help nobody.
    """
    found = [_node(side)]
    if side.session is not None:
        found.append(_api(side.session.state))
    found += [_watch(watch.state) for watch in side.watches.values()]
    if side.kubelet is not None:
        found.append(_kubelet(side.kubelet.poller.state))
        if side.kubelet.proxy is not None:
            proxy = side.kubelet.proxy.state
            found.append(_said("pod-resources-proxy", proxy.serving, proxy.error))
    if side.sink is not None:
        found.append(_events(side.sink.state))
    return found


def _said(name: str, ok: bool, message: str) -> Check:
    return Check(name=name, ok=ok, message=message, gates_ready=False)


def _node(side: ClusterSide) -> Check:
    standing = side.known.standing()
    wrong = standing.reason == ANOTHER_MACHINE
    message = standing.message or "this machine's"
    return Check(name="node", ok=standing.writes, message=message, gates_ready=wrong)


def _api(state: SessionState) -> Check:
    asked = sum(state.requests.values())
    words = f"{asked} requests, {state.streams} streams"
    if state.clock_skew_s:
        words += f", its clock is {state.clock_skew_s:+.0f} s from ours"
    if state.reachable is not True and state.last_error:
        words = f"{state.last_error}; {words}"
    return _said("api-server", state.reachable is True, words)


def _watch(state: WatchState) -> Check:
    absent = state.phase is Phase.ABSENT and state.resource in OPTIONAL
    words = f"{state.phase.value}, {state.objects} objects, {state.events} events"
    if state.last_error:
        words += f": {state.last_error}"
    return _said(f"watch:{state.resource}", absent or not state.last_error, words)


def _kubelet(state: KubeletState) -> Check:
    words = f"pods {state.pods}, settings {state.config}"
    return _said(
        "kubelet", state.pods == KUBELET_OK, f"{words}: {state.detail}" if state.detail else words
    )


def _events(state: SinkState) -> Check:
    return _said("events-at-api-server", not state.error, state.error)
