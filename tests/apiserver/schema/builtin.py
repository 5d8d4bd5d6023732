"""Structures of kinds whose manifests are not at hand: core kinds and NodeResourceTopology."""

from __future__ import annotations

from typing import Any

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INT32: Schema = {"type": "integer", "format": "int32"}
INT64: Schema = {"type": "integer", "format": "int64"}
TIME: Schema = {"type": "string"}  # how it must look is checked where times are: `times.py`
AMOUNT: Schema = {"x-kubernetes-int-or-string": True, "pattern": QUANTITY}
FREE: Schema = {"x-kubernetes-preserve-unknown-fields": True}


def record(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {"type": "object", "properties": properties, "required": list(required)}


def open_record(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object of which only these fields are described."""
    return {
        **record(required, **properties),
        "x-kubernetes-preserve-unknown-fields": True,
    }


def mapping(element: Schema) -> Schema:
    """Return the schema of a map of free keys."""
    return {"type": "object", "additionalProperties": element}


def listed(element: Schema, *keys: str) -> Schema:
    """Return the schema of a list: merged by these keys, or as a whole where there are none."""
    if not keys:
        return {"type": "array", "items": element}
    return {
        "type": "array",
        "items": element,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
    }


TEXTS: Schema = listed(STRING)
NAMES: Schema = {**TEXTS, "x-kubernetes-list-type": "set"}
METADATA: Schema = record(
    name=STRING,
    generateName=STRING,
    namespace=STRING,
    uid=STRING,
    resourceVersion=STRING,
    generation=INT64,
    selfLink=STRING,
    creationTimestamp=TIME,
    deletionTimestamp=TIME,
    deletionGracePeriodSeconds=INT64,
    labels=mapping(STRING),
    annotations=mapping(STRING),
    ownerReferences=listed(
        record(
            ("apiVersion", "kind", "name", "uid"),
            apiVersion=STRING,
            kind=STRING,
            name=STRING,
            uid=STRING,
            controller=BOOLEAN,
            blockOwnerDeletion=BOOLEAN,
        ),
        "uid",
    ),
    finalizers=NAMES,
    managedFields=listed(FREE),
)
_CONDITION = record(
    ("type", "status"),
    type=STRING,
    status=STRING,
    reason=STRING,
    message=STRING,
    lastHeartbeatTime=TIME,
    lastTransitionTime=TIME,
    lastProbeTime=TIME,
    observedGeneration=INT64,
)
NODE: Schema = record(
    spec=open_record(
        taints=listed(
            record(("key", "effect"), key=STRING, value=STRING, effect=STRING, timeAdded=TIME),
            "key",
            "effect",
        ),
        podCIDRs=NAMES,
        unschedulable=BOOLEAN,
    ),
    status=open_record(
        capacity=mapping(AMOUNT),
        allocatable=mapping(AMOUNT),
        conditions=listed(_CONDITION, "type"),
        addresses=listed(record(("type", "address"), type=STRING, address=STRING), "type"),
        images=listed(FREE),
    ),
)
_CONTAINERS = listed(open_record(("name",), name=STRING), "name")
POD: Schema = record(
    spec=open_record(
        nodeName=STRING,
        containers=_CONTAINERS,
        initContainers=_CONTAINERS,
        volumes=listed(open_record(("name",), name=STRING), "name"),
        imagePullSecrets=listed(open_record(name=STRING), "name"),
        tolerations=listed(FREE),
    ),
    status=open_record(
        phase=STRING,
        conditions=listed(_CONDITION, "type"),
        podIPs=listed(record(("ip",), ip=STRING), "ip"),
        hostIPs=listed(FREE),
        containerStatuses=listed(open_record(("name",), name=STRING)),
    ),
)
DAEMON_SET: Schema = record(
    spec=FREE,
    status=record(
        observedGeneration=INT64,
        currentNumberScheduled=INT32,
        desiredNumberScheduled=INT32,
        numberMisscheduled=INT32,
        numberReady=INT32,
        updatedNumberScheduled=INT32,
        numberAvailable=INT32,
        numberUnavailable=INT32,
        collisionCount=INT32,
        conditions=listed(_CONDITION, "type"),
    ),
)
_SELECTOR = record(
    matchLabels=mapping(STRING),
    matchExpressions=listed(record(("key", "operator"), key=STRING, operator=STRING, values=TEXTS)),
)
_AMOUNT_OR_PERCENT: Schema = {"x-kubernetes-int-or-string": True}
DISRUPTION_BUDGET: Schema = record(
    spec=record(
        minAvailable=_AMOUNT_OR_PERCENT,
        maxUnavailable=_AMOUNT_OR_PERCENT,
        selector=_SELECTOR,
        unhealthyPodEvictionPolicy=STRING,
    ),
    status=record(
        observedGeneration=INT64,
        disruptedPods=mapping(TIME),
        disruptionsAllowed=INT32,
        currentHealthy=INT32,
        desiredHealthy=INT32,
        expectedPods=INT32,
        conditions=listed(_CONDITION, "type"),
    ),
)
NAMESPACE: Schema = record(spec=FREE, status=FREE)
LEASE: Schema = record(
    spec=record(
        holderIdentity=STRING,
        leaseDurationSeconds=INT32,
        acquireTime=TIME,
        renewTime=TIME,
        leaseTransitions=INT32,
        strategy=STRING,
        preferredHolder=STRING,
    ),
)
ENDPOINT_SLICE: Schema = record(
    addressType=STRING,
    endpoints=listed(
        record(
            addresses=TEXTS,
            conditions=record(ready=BOOLEAN, serving=BOOLEAN, terminating=BOOLEAN),
            hostname=STRING,
            nodeName=STRING,
            zone=STRING,
            targetRef=FREE,
        )
    ),
    ports=listed(record(name=STRING, port=INT32, protocol=STRING, appProtocol=STRING)),
)
_REFERENCE = record(
    apiVersion=STRING,
    kind=STRING,
    namespace=STRING,
    name=STRING,
    uid=STRING,
    resourceVersion=STRING,
    fieldPath=STRING,
)
EVENT: Schema = record(
    eventTime=TIME,
    series=record(("count", "lastObservedTime"), count=INT32, lastObservedTime=TIME),
    reportingController=STRING,
    reportingInstance=STRING,
    action=STRING,
    reason=STRING,
    regarding=_REFERENCE,
    related=_REFERENCE,
    note=STRING,
    type=STRING,
    deprecatedSource=record(component=STRING, host=STRING),
    deprecatedFirstTimestamp=TIME,
    deprecatedLastTimestamp=TIME,
    deprecatedCount=INT32,
)
_NAMED_VALUE = record(("name", "value"), name=STRING, value=STRING)
_ZONE = record(
    ("name", "type"),
    name=STRING,
    type=STRING,
    parent=STRING,
    costs=listed(record(("name", "value"), name=STRING, value=INT64)),
    attributes=listed(_NAMED_VALUE),
    resources=listed(
        record(
            ("name", "capacity", "allocatable", "available"),
            name=STRING,
            capacity=AMOUNT,
            allocatable=AMOUNT,
            available=AMOUNT,
        )
    ),
)
TOPOLOGY_V1ALPHA1: Schema = record(
    ("topologyPolicies", "zones"), topologyPolicies=TEXTS, zones=listed(_ZONE)
)
TOPOLOGY_V1ALPHA2: Schema = record(
    ("zones",), topologyPolicies=TEXTS, zones=listed(_ZONE), attributes=listed(_NAMED_VALUE)
)
