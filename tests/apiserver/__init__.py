"""A strict API server for tests: HTTPS, watches, server-side apply, CRD schemas, RBAC, faults.

It runs in a thread with an event loop of its own, so that synchronous tests, `asyncio.run(...)`
and child processes can use it alike; it listens on loopback only.

    with ApiServer(nodes=("node-a",)) as api:
        api.url               "https://127.0.0.1:PORT"
        api.ca_file           trust this; api.wrong_ca_file is another authority's
        api.token_file        the service account's token; api.rotate_token() writes a new one
                              there, after which the old one is answered 401
        api.admit(token, user)  know a token from elsewhere as a user's; api.forget(token)
        api.permit(user, rule)  what SubjectAccessReviews say that a user or group may do
        api.serviceaccount_dir  token, ca.crt, namespace, as a pod sees them
        api.kubeconfig        for kubectl and the Python client (an administrator: RBAC does not
                              limit it); api.agent_kubeconfig has the service account's token
        api.put(obj, manager="koord-manager")   create or replace as an administrator
        api.put(obj, checked=False)             the same, taken as it is: wrong types, nulls
        api.get("Device", "node-a")             a copy, or None; kinds or plurals
        api.list("pods"), api.delete("pods", "p", "default")
        api.apply(obj, manager=…, force=…, subresource=…)   another writer; raises `Refusal`
        api.requests(verb="patch", …)           what was asked: `Logged`, oldest first
        api.clear_requests()
        api.faults.add(Fault(…))                misbehave; remove(fault), clear(), hits(fault)
        api.grant(rule), api.revoke(rule)       RBAC at runtime; revoke() takes all away
        api.remove_crd("devices"), api.add_crd("devices")
        api.add_crd("devices", without=("spec.devices.conditions",))   as an older release's
        api.pass_time(2)      times in objects are of so much later from now on
        api.compact()         older resourceVersions and continue tokens are expired
        api.close_watches()   every open watch ends in order; api.watches() lists the open ones
        api.stop(), api.start()                 gone, and back on the same port, nothing forgotten
        api.start(wrong_ca=True)                back with a certificate of another authority
        api.wait_until(lambda: …, timeout_s=5)  looks again after each request and each change

Arguments, all by name: `nodes` (names; Node objects with uid, addresses, machine id), `objects`
(put at the start), `roles` (a ClusterRole YAML file; without it everything is allowed),
`validation` (schemas and rules of events; False for benches), `server_side_apply` (False: 415),
`topology_versions` (of NodeResourceTopology, default both), `garbage_collection` (dependents of a
deleted Node go, and so does what names a Node's uid that is not there), `bookmark_interval_s`
(without it no bookmark comes, as from a server whose etcd has its default of progress reports),
`max_body_bytes`, `host`, `port`, `directory`.

What surprises, and is as in a real server:
* An apply with a field that the schema lacks, or of a wrong type, is a 500 without a reason
  ("failed to create typed patch object …"); POST, PUT and the other patches drop the field, name
  it in a Warning header (and in `Logged.dropped`) and go on.
* A list with resourceVersion=0 ignores `limit` (`api.app.pages_from_cache = True` changes it).
* A list from another version ignores nothing: with `limit` it is that very version (410 when it
  is too old), without it anything at least as new; one not reached yet is a 504.
* A watch from a version that is too old is answered 200, with an ERROR event of code 410; for a
  plain HTTP 410 add `Fault(verb="watch", status=410)`. One from a version that is not reached yet
  is silent until it is: not even bookmarks come.
* A resource that there is not is answered 404 in plain text, and so is a 429 (`Fault(status=429)`):
  neither is a Status.
* A SelfSubjectAccessReview is open to every user; a right that no rule gives is not "denied".
* An apply that creates needs the right to `create` besides `patch`.
* A write to a NodeResourceTopology in v1alpha1 loses what only v1alpha2 has (`attributes`).
* An eviction leaves a pod of a node terminating: a test removes it as the kubelet would. Of a
  PodDisruptionBudget only the status counts, which a test puts as its controller would.
* An object whose owner is a Node that is not there (by uid) does not stay.
* Items of lists of built-in kinds have no apiVersion and no kind.
* Large answers are compressed where the client takes gzip.

`python -m tests.apiserver` serves until SIGTERM, for a person with kubectl and for benches;
`/_control/requests` (GET; DELETE forgets), `/_control/watches` (GET), `/_control/faults` (POST a
`Fault` as JSON, DELETE all), `/_control/put` and `/_control/compact` (POST) steer it, without a
token.
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
