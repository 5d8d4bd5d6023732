"""A strict API server for tests: HTTPS, watches, server-side apply, CRD schemas, RBAC, faults.

It runs in a thread with an event loop of its own, so that synchronous tests, `asyncio.run(...)`
and child processes can use it alike; it listens on loopback only.

    with ApiServer(nodes=("node-a",)) as api:
        api.url               "https://127.0.0.1:PORT"
        api.ca_file           trust this; api.wrong_ca_file is another authority's
        api.token_file        the service account's token; api.rotate_token() writes a new one
                              there, after which the old one is answered 401
        api.serviceaccount_dir  token, ca.crt, namespace, as a pod sees them
        api.kubeconfig        for kubectl and the Python client (an administrator: RBAC does not
                              limit it); api.agent_kubeconfig has the service account's token
        api.put(obj, manager="koord-manager")   create or replace as an administrator
        api.put(obj, checked=False)             the same, taken as it is: wrong types, nulls
        api.get("Device", "node-a")             a copy, or None; kinds or plurals
        api.list("pods"), api.delete("pods", "p", "default"), api.apply(obj, manager=…, force=…)
        api.requests(), api.clear_requests()    what was asked: `Logged`, oldest first
        api.faults.add(Fault(…))                misbehave; remove(fault), clear(), hits(fault)
        api.grant(rule), api.revoke(rule)       RBAC at runtime; rules as in a ClusterRole
        api.remove_crd("devices"), api.add_crd("devices")
        api.compact()         older resourceVersions and continue tokens are answered 410
        api.close_watches()   every open watch ends in order; api.watches() lists the open ones
        api.stop(), api.start()                 gone, and back on the same port, nothing forgotten
        api.wait_until(lambda: …, timeout_s=5)  looks again after each request and each change

Arguments, all by name: `nodes` (names; Node objects with uid, addresses, machine id), `objects`
(put at the start), `roles` (a ClusterRole YAML file; without it everything is allowed),
`validation` (schemas and rules of events; False for benches), `server_side_apply` (False: 415),
`topology_versions` (of NodeResourceTopology, default both), `garbage_collection` (dependents of a
deleted owner go too), `bookmark_interval_s`, `max_body_bytes`, `host`, `port`, `directory`.

`python -m tests.apiserver` serves until SIGTERM, for a person with kubectl and for benches;
`/_control/requests`, `/_control/faults`, `/_control/put`, `/_control/watches` steer it.
"""

from __future__ import annotations

from tests.apiserver.access import ADMIN, AGENT
from tests.apiserver.admin import node
from tests.apiserver.faults import Fault
from tests.apiserver.log import Logged
from tests.apiserver.rbac import ALL, Rule
from tests.apiserver.refusal import Refusal
from tests.apiserver.server import ApiServer

__all__ = ["ADMIN", "AGENT", "ALL", "ApiServer", "Fault", "Logged", "Refusal", "Rule", "node"]
