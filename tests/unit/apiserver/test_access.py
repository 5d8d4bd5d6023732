"""Who gets in, and who may do what."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import yaml

from tests.apiserver import AGENT, ApiServer, Rule
from tests.unit.apiserver.client import DEVICES, NODE_METRICS, Client, device, metric

ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: agent}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [slo.koordinator.sh], resources: [nodemetrics/status], verbs: [patch]}
- apiGroups: [scheduling.koordinator.sh]
  resources: [devices]
  resourceNames: [node-a]
  verbs: [get]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: agent}
"""


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_a_valid_token_nothing_is_revealed(api: ApiServer, token: str) -> None:
    status, body = Client(api, token).get(DEVICES)
    assert (status, body["reason"], body["message"]) == (401, "Unauthorized", "Unauthorized")


def test_a_rotated_token_is_refused_from_then_on(api: ApiServer, client: Client) -> None:
    assert client.get(DEVICES)[0] == 200
    api.rotate_token()
    assert client.get(DEVICES)[0] == 401
    assert Client(api).get(DEVICES)[0] == 200
    api.rotate_token(keep_old=True)
    assert Client(api).get(DEVICES)[0] == 200


def test_another_authority_is_not_trusted(api: ApiServer, client: Client) -> None:
    api.stop()
    api.start(wrong_ca=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.get(DEVICES)
    api.stop()
    api.start()
    assert client.get(DEVICES)[0] == 200


def test_what_no_rule_allows_is_forbidden_in_the_usual_words(tmp_path: Path) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text(ROLE)
    with ApiServer(nodes=("node-a",), roles=roles) as api:
        api.put(metric())
        client = Client(api)
        assert client.get("/api/v1/nodes")[0] == 200
        assert client.get(f"{DEVICES}/node-a")[0] == 404
        status, body = client.apply(f"{DEVICES}/node-a", device())
        assert (status, body["reason"]) == (403, "Forbidden")
        assert body["message"] == (
            f'devices.scheduling.koordinator.sh "node-a" is forbidden: User "{AGENT}" cannot '
            'patch resource "devices" in API group "scheduling.koordinator.sh" at the cluster scope'
        )
        status, body = client.get("/api/v1/namespaces/default/pods")
        assert status == 403
        assert body["message"].endswith('in API group "" in the namespace "default"')
        assert client.apply(f"{NODE_METRICS}/node-a", metric())[0] == 403
        assert client.apply(f"{NODE_METRICS}/node-a/status", metric())[0] == 200
        assert client.get("/version")[0] == 200


def test_an_apply_that_creates_needs_the_right_to_create_besides(
    api: ApiServer, client: Client
) -> None:
    devices = Rule(
        api_groups=("scheduling.koordinator.sh",), resources=("devices",), verbs=("patch",)
    )
    api.revoke()
    api.grant(devices)
    status, body = client.apply(f"{DEVICES}/node-a", device())
    assert status == 403
    assert 'cannot create resource "devices"' in body["message"]
    api.put(device())
    assert client.apply(f"{DEVICES}/node-a", device(), force="true")[0] == 200


def test_rules_come_and_go(api: ApiServer, client: Client) -> None:
    rule = Rule(api_groups=("scheduling.koordinator.sh",), resources=("devices",), verbs=("list",))
    api.revoke()
    assert client.get(DEVICES)[0] == 403
    api.grant(rule)
    assert client.get(DEVICES)[0] == 200
    api.revoke(rule)
    assert client.get(DEVICES)[0] == 403


def test_a_pods_folder_and_kubeconfigs_lead_to_the_server(api: ApiServer) -> None:
    folder = api.serviceaccount_dir
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "namespace", "token"]
    assert (folder / "ca.crt").read_bytes() == api.ca_file.read_bytes()
    for path in (api.kubeconfig, api.agent_kubeconfig):
        config = yaml.safe_load(path.read_text())
        assert config["clusters"][0]["cluster"]["server"] == api.url


def test_the_files_go_with_the_server() -> None:
    with ApiServer() as api:
        folder = api.kubeconfig.parent
        assert folder.is_dir()
    assert not folder.exists()


def test_it_serves_on_ipv6() -> None:
    with ApiServer(host="::1") as api:
        assert api.url == f"https://[::1]:{api.port}"


def test_it_comes_back_on_its_port_with_all_it_had(api: ApiServer, client: Client) -> None:
    api.put(device())
    port = api.port
    api.stop()
    with pytest.raises(ConnectionRefusedError):
        client.get(DEVICES)
    api.start()
    assert api.port == port
    assert client.get(f"{DEVICES}/node-a")[0] == 200


def test_requests_are_logged(api: ApiServer, client: Client) -> None:
    client.apply(f"{DEVICES}/node-a", device())
    (entry,) = api.requests(verb="patch")
    assert (entry.method, entry.resource, entry.name, entry.status) == (
        "PATCH",
        "devices",
        "node-a",
        201,
    )
    assert entry.query == {"fieldManager": "xpu-agent"}
    assert entry.body == device()
    assert entry.body_bytes > 0
    assert (entry.user, entry.user_agent) == (AGENT, "plain/1.0")
    assert entry.changed
    api.clear_requests()
    assert api.requests() == []
