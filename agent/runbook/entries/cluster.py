"""Entries of the cluster: the Node, the API server, watches and writes."""

from __future__ import annotations

from agent.runbook.entry import RecommendedAction, RunbookEntry

_NOT_PUBLISHED = "Nothing of this node is published."
_OLD = "The API server keeps the last published content."
_VIEW_OLD = "The agent works with the last objects that it has seen."
_ONE_WRITER = (
    "stop the other writer (for koordlet see docs/cluster.md, Coming from koordlet), or switch "
    "this agent's off (publish.device, publish.node_metric, publish.node_resource_topology)"
)

CLUSTER_ENTRIES = (
    RunbookEntry(
        "NodeOfAnotherMachine",
        "the Node object is another machine's",
        "Machine id or boot id of the Node differ from this machine's.",
        f"{_NOT_PUBLISHED} The agent is not ready.",
        "correct node.name; on a cloned machine make a new /etc/machine-id",
    ),
    RunbookEntry(
        "NodeAbsent",
        "there is no Node of this name",
        "The kubelet has not registered the Node yet, the Node was deleted, or node.name is wrong.",
        _NOT_PUBLISHED,
        "start the kubelet; or correct node.name",
    ),
    RunbookEntry(
        "NodeNotRead",
        "the Node was not read yet",
        "The agent has not received its Node from the API server.",
        _NOT_PUBLISHED,
        "nothing, for some seconds; else see the API server and the watch of nodes",
    ),
    RunbookEntry(
        "NodeNotVerified",
        "whether the Node is this machine's is not certain",
        "The machine or the Node has no machine id.",
        "None: the Node is taken for this machine's.",
        "mount /etc/machine-id into the agent's container",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "ApiServerUnreachable",
        "the API server cannot be reached",
        "The last request got no answer.",
        f"{_OLD} {_VIEW_OLD} After a while the NodeSLO counts as not confirmed.",
        "see the message: network, DNS, certificate or token",
    ),
    RunbookEntry(
        "ClockSkew",
        "the clocks of API server and node differ",
        "The Date header of the API server differs from the node's clock.",
        "Times in objects and events are wrong; tokens and certificates may be refused.",
        "let chrony or systemd-timesyncd set the node's clock",
    ),
    RunbookEntry(
        "WatchFailing",
        "a watch fails",
        "The list or the stream of a kind of objects ends with an error.",
        _VIEW_OLD,
        "see the message",
    ),
    RunbookEntry(
        "WatchForbidden",
        "the agent may not watch a kind of objects",
        "The API server answers 403.",
        _VIEW_OLD,
        "grant the right in the agent's ClusterRole; see docs/cluster.md",
    ),
    RunbookEntry(
        "WatchAbsent",
        "the API server lacks a kind of objects",
        "The CRD is not installed.",
        "The agent works without these objects.",
        "install Koordinator's CRDs, or nothing",
    ),
    RunbookEntry(
        "ObjectNotWritten",
        "an object is not written",
        "A publisher's last content is not at its destination.",
        _OLD,
        "see the message",
    ),
    RunbookEntry(
        "WriteConflict",
        "another writer holds fields of an object",
        "Another field manager has set fields that the agent writes, with other values.",
        "These fields keep the values of the other writer.",
        _ONE_WRITER,
    ),
    RunbookEntry(
        "WriteTakenOver",
        "the agent took over fields of an object",
        "The other writer of these fields has been silent for a long time.",
        "The fields have the agent's values now.",
        "nothing, if the other writer has ended",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "WriteUndone",
        "another writer undoes the agent's writes",
        "An object has other values again and again after the agent wrote it.",
        "The object has the other writer's values; the agent tries again every five minutes.",
        _ONE_WRITER,
    ),
    RunbookEntry(
        "WriteForbidden",
        "the agent may not write an object",
        "The API server or an admission webhook refuses the write (403).",
        _OLD,
        "grant it in the agent's ClusterRole, or see the policy that the message names",
    ),
    RunbookEntry(
        "WriteRefused",
        "the API server refuses an object",
        "The content does not fit the schema of the CRD.",
        _OLD,
        "update the CRD to Koordinator's version; see the fields in the message",
    ),
    RunbookEntry(
        "ResourceMissing",
        "the CRD of an object is not installed",
        "The API server does not have the kind of object that the agent writes.",
        "The object is not published; the rest goes on.",
        "install Koordinator's CRDs, or switch the publisher off",
    ),
    RunbookEntry(
        "FieldsNotKept",
        "the API server drops fields of an object",
        "The schema of the CRD lacks fields that the agent writes.",
        "The dropped fields are not published.",
        "update the CRD to Koordinator's version",
    ),
    RunbookEntry(
        "EventsNotWritten",
        "Kubernetes events are not written",
        "The API server refuses events, or cannot be reached.",
        "Events are in the agent's log and on its page only.",
        "grant the right to create events, or let the agent reach the API server",
    ),
)
