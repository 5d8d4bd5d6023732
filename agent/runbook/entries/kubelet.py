"""Entries of the kubelet: its device plug-in interface and its pod list."""

from __future__ import annotations

from agent.runbook.entry import RecommendedAction, RunbookEntry

_NOT_ADMITTED = "Pods that request the resource are not admitted on this node."
_POD_REFUSED = "The pod is not admitted."
_AGAIN = "see the message; the agent goes on trying"
_PODS_UNKNOWN = (
    "Pods are those of the API server alone; without it, new pods are unknown to the agent."
)


def _not_served(
    reason: str,
    title: str,
    meaning: str,
    remedy: str = _AGAIN,
    action: RecommendedAction = RecommendedAction.LOOK,
) -> RunbookEntry:
    return RunbookEntry(reason, title, meaning, _NOT_ADMITTED, remedy, action)


def _refused(reason: str, title: str, meaning: str, remedy: str) -> RunbookEntry:
    return RunbookEntry(reason, title, meaning, _POD_REFUSED, remedy)


KUBELET_ENTRIES = (
    _not_served(
        "ResourceNotServed",
        "a resource is not registered with the kubelet",
        "The kubelet does not watch the list of devices of a resource.",
    ),
    _not_served(
        "DevicePluginRefused",
        "the kubelet refuses a resource",
        "The kubelet answered the registration with a refusal.",
    ),
    _not_served(
        "DevicePluginConflict",
        "another device plug-in serves the resource",
        "The kubelet gives a resource to the plug-in that registered last.",
        "remove the vendor's device plug-in, or take the vendor out of device_plugin.vendors",
    ),
    _not_served(
        "AnotherPlugin",
        "another device plug-in serves the resource",
        "A socket of another device plug-in for the same vendor listens in the kubelet's folder.",
        "remove the vendor's device plug-in, or take the vendor out of device_plugin.vendors",
    ),
    _not_served(
        "StreamsEnded",
        "another program takes the resource again and again",
        "The kubelet ended the agent's streams several times: another plug-in registers the "
        "resource, or there are two agents.",
        "end the other plug-in or agent",
    ),
    _not_served(
        "KubeletAway",
        "the kubelet does not listen",
        "Nothing accepts connections on the kubelet's registration socket.",
        "start the kubelet; see its log",
    ),
    _not_served(
        "KubeletSilent",
        "the kubelet does not answer the registration",
        "The kubelet accepted the connection and gave no answer in time.",
        "see the kubelet's log and the load of the node",
    ),
    _not_served(
        "NoKubelet",
        "another program listens on the kubelet's socket",
        "The program at kubelet.sock does not know the registration of device plug-ins.",
        "see what listens there, and kubelet.root_dir",
    ),
    _not_served(
        "NoStream",
        "the kubelet does not ask for the devices",
        "The kubelet took the registration and opened no stream in time.",
        "see the kubelet's log",
    ),
    _not_served(
        "StreamEnded",
        "the kubelet ended the stream of devices",
        "The kubelet was restarted, or another plug-in registered the resource.",
        "nothing: the agent registers again",
        RecommendedAction.NONE,
    ),
    _not_served(
        "NameRefused",
        "the kubelet refuses the name of the resource",
        "The resource name is not valid, or not permitted by the kubelet.",
        "correct the name of the resource in the settings of the vendor",
    ),
    _not_served(
        "VersionRefused",
        "the kubelet does not support the plug-in version",
        "The kubelet is older than the device plug-in API v1beta1.",
        "update the kubelet",
    ),
    _not_served(
        "RegistrationFailed",
        "the registration failed",
        "The kubelet answered the registration with an error.",
        "see the kubelet's log; the agent goes on trying",
    ),
    _not_served(
        "PathTooLong",
        "the path of a socket is too long",
        "A socket's path may have 107 bytes.",
        "set kubelet.root_dir to a shorter path",
    ),
    _not_served(
        "ResourceConflict",
        "two vendors or kinds would serve one resource name",
        "A resource name can have the devices of one vendor only.",
        "give one of them another name in the settings of its vendor",
    ),
    RunbookEntry(
        "SharedDeviceMissing",
        "a device of the settings for sharing is not there",
        "The settings share a device by name, and the node has no such device.",
        "The resource has fewer devices than the settings say.",
        "correct the settings of sharing, or see why the device is missing",
    ),
    RunbookEntry(
        "BadResourceName",
        "a resource name of the settings is not valid",
        "A resource name is DOMAIN/NAME.",
        "The resource is not served.",
        "correct the name of the resource in the settings of the vendor",
    ),
    RunbookEntry(
        "DeviceWithdrawn",
        "a device in use is withdrawn from the kubelet",
        "A pod has the device by a scheduler's allocation, of which the kubelet does not know: it "
        "would give the device to another pod.",
        "The kubelet has fewer devices for other pods until that pod ends.",
        "nothing; to avoid it, let pods with a grant ask for the kubelet's resource, too",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "GrantGivenToAnotherPod",
        "a pod got what another pod was granted",
        "The kubelet names no pod in its request. The pod that it asked for was not listed yet, so "
        "the agent took the request for another pod's.",
        "Two pods have the same devices.",
        "delete the pod that the message names; let the agent reach the API server or the kubelet",
    ),
    _refused(
        "AmbiguousPod",
        "the kubelet's request fits several pods",
        "The kubelet does not name the pod of a request, and several pods could be meant.",
        "nothing: the kubelet asks again; if it goes on, delete one of the pods",
    ),
    _refused(
        "PodUnknown",
        "the kubelet's request fits no pod",
        "The pod of a request is not in the lists of the API server and of the kubelet.",
        "let the agent reach the API server or the kubelet",
    ),
    _refused(
        "UnknownDevice",
        "the kubelet asks for an unknown device",
        "An id of the request is not in the list of the resource.",
        "delete the pod; if it goes on, restart the kubelet",
    ),
    _refused(
        "UnknownResource",
        "the kubelet asks for an unknown resource",
        "The resource of the request is not served any more.",
        "see device_plugin in the settings",
    ),
    RunbookEntry(
        "DeviceExchanged",
        "a container has another device than the kubelet chose",
        "The scheduler allocated other devices than the kubelet chose, and the scheduler's count.",
        "The kubelet accounts the device that it chose; the agent withdraws the other one from it.",
        "nothing; to avoid it, let one scheduler choose the devices",
        RecommendedAction.NONE,
    ),
    _refused(
        "TooManyReplicas",
        "a container asks for several shares of cards",
        "device_plugin.fail_requests_greater_than_one permits one share of a card for a container.",
        "request 1 of the resource",
    ),
    _refused(
        "NotEnoughDevices",
        "fewer devices are free than the pod asks for",
        "The preferred allocation needs more devices than are available.",
        "see the devices out of service",
    ),
    _refused(
        "DeviceOccupied",
        "a process of another pod still runs on the device",
        "The device is free by the kubelet's account, and a process uses it.",
        "end the process that the message names",
    ),
    _refused(
        "InventoryAwaited",
        "the devices are not read yet",
        "The agent has just started, or the vendor does not answer.",
        "nothing for some seconds; if it goes on, see the vendor",
    ),
    _refused(
        "NoSuchSize",
        "the kubelet asks for an impossible number of devices",
        "The number is zero or larger than the list; a result of GetPreferredAllocation only.",
        "see the kubelet's log",
    ),
    _refused(
        "NotPrepared",
        "a folder or file for the container could not be made",
        "What the container needs on the host could not be written in time.",
        "see the message: the disk hangs, is full or read-only",
    ),
    RunbookEntry(
        "KubeletStarting",
        "the kubelet was not asked yet",
        "The agent has just started.",
        _PODS_UNKNOWN,
        "nothing, for some seconds",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "KubeletEmpty",
        "the kubelet lists no pods",
        "The kubelet has not read its pods yet, or runs none.",
        _PODS_UNKNOWN,
        "nothing, for a minute; else see the kubelet's log",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "KubeletAbsent",
        "the kubelet cannot be reached",
        "No process listens on the kubelet's port, or the network does not reach it.",
        _PODS_UNKNOWN,
        "start the kubelet; see kubelet.address in the settings",
    ),
    RunbookEntry(
        "KubeletHanging",
        "the kubelet does not answer",
        "The kubelet accepts connections and does not answer within the deadline.",
        _PODS_UNKNOWN,
        "see the kubelet's log and the load of the node",
    ),
    RunbookEntry(
        "KubeletUnauthorised",
        "the kubelet does not accept the agent's token",
        "The kubelet answers 401.",
        _PODS_UNKNOWN,
        "let the kubelet accept service account tokens (authentication.webhook.enabled)",
    ),
    RunbookEntry(
        "KubeletForbidden",
        "the agent may not read the kubelet's pods",
        "The kubelet answers 403.",
        _PODS_UNKNOWN,
        "grant the right that the message names in the agent's ClusterRole",
    ),
    RunbookEntry(
        "KubeletFailing",
        "the kubelet's answer cannot be used",
        "The answer is an error, not JSON, or too large.",
        _PODS_UNKNOWN,
        "see the kubelet's log",
    ),
    RunbookEntry(
        "PodResourcesProxyDown",
        "the pod-resources proxy does not serve",
        "The socket of the proxy cannot be made, or the kubelet's socket cannot be reached.",
        "Programs that use the proxy learn nothing about devices of pods.",
        "see the message; node.run_dir has to be writable",
    ),
)
