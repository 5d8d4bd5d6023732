"""Pods bound to this node."""

from __future__ import annotations

from agent.kube.resources import PODS
from agent.kube.watch.wire import Kind
from agent.model.foreign.pod import PodObject, pod_view
from agent.model.pod import PodView

OWN_PODS: Kind[PodObject, PodView] = Kind(
    resource=PODS, wire=PodObject, make=pod_view, selected_by="spec.nodeName"
)
