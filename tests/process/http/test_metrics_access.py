"""A real Prometheus reads the metrics of an agent that restricts them, and nobody else does."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bcrypt
import pytest
import trustme

from tests.apiserver import ApiServer, Rule
from tests.apiserver.access import AGENT
from tests.apiserver.rbac import read_roles
from tests.patience import PATIENCE_S
from tests.process.agent import NO_DEVICES, ROOT, Agent, command
from tests.process.citizen import NODE, citizen
from tests.prometheus.server import needs_prometheus, running_prometheus
from tests.unit.access.certificates import SecretVolume, client_context
from tests.unit.daemonset.rights import Right, verbs_granted, verbs_used

COMPONENT = ROOT / "daemonset" / "components" / "metrics-auth" / "rbac.yaml"
SCRAPER = "system:serviceaccount:monitoring:prometheus"
PASSWORD = "a password"
NAME = "prometheus.monitoring.svc"


def get(agent: Agent, path: str, context: ssl.SSLContext) -> tuple[int, str]:
    """Return status and body of an answer."""
    url = agent.url + path
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(agent: Agent, ca_file: Path, credentials: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a configuration with one job for each way to present oneself."""
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": job,
                "scheme": "https",
                "static_configs": [{"targets": [urlsplit(agent.url).netloc]}],
                **more,
                "tls_config": {"ca_file": str(ca_file), **more.get("tls_config", {})},
            }
            for job, more in credentials.items()
        ],
    }


@needs_prometheus
def test_prometheus_reads_with_a_certificate_a_token_or_a_password_and_not_without(
    tmp_path: Path,
) -> None:
    authority, clients = trustme.CA(), trustme.CA()
    volume = SecretVolume(tmp_path / "tls")
    volume.mount(authority, ca_crt=clients.cert_pem.bytes())
    ca_file = tmp_path / "server-ca.crt"
    ca_file.write_bytes(authority.cert_pem.bytes())
    pair = clients.issue_cert(NAME)
    (tmp_path / "client.crt").write_bytes(b"".join(one.bytes() for one in pair.cert_chain_pems))
    (tmp_path / "client.key").write_bytes(pair.private_key_pem.bytes())
    web = tmp_path / "web.yaml"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(5)).decode()
    web.write_text(f"basic_auth_users: {{alice: {hashed}}}\n")
    environment = {
        "XPU_AGENT_METRICS__TLS__CERT_FILE": str(volume.folder / "tls.crt"),
        "XPU_AGENT_METRICS__TLS__KEY_FILE": str(volume.folder / "tls.key"),
        "XPU_AGENT_METRICS__TLS__CLIENT_CA_FILE": str(volume.folder / "ca.crt"),
        "XPU_AGENT_METRICS__TLS__CLIENT_AUTH": "accept",
        "XPU_AGENT_METRICS__TLS__CLIENT_NAMES": NAME,
        "XPU_AGENT_METRICS__AUTH__TOKENS": "true",
        "XPU_AGENT_METRICS__WEB_CONFIG_FILE": str(web),
    }
    own = {"cert_file": str(tmp_path / "client.crt"), "key_file": str(tmp_path / "client.key")}
    ways: dict[str, dict[str, Any]] = {
        "certificate": {"tls_config": own},
        "token": {"authorization": {"credentials": "scraper-token"}},
        "password": {"basic_auth": {"username": "alice", "password": PASSWORD}},
        "nothing": {},
        "no right": {"authorization": {"credentials": "other-token"}},
        "wrong password": {"basic_auth": {"username": "alice", "password": "guess"}},
    }
    expected = {"certificate": "", "token": "", "password": "", "nothing": "401"}
    expected |= {"no right": "403", "wrong password": "401"}
    with ApiServer(nodes=(NODE,)) as api:
        for rule in read_roles(COMPONENT):
            if not rule.non_resource_urls:
                api.grant(rule)
        api.admit("scraper-token", SCRAPER)
        api.admit("other-token", "system:serviceaccount:default:other")
        api.permit(SCRAPER, Rule(non_resource_urls=("/metrics",), verbs=("get",)))
        with citizen(api, tmp_path / "a", "--host", str(NO_DEVICES), **environment) as agent:
            assert agent.url.startswith("https://")
            config = scrape(agent, ca_file, ways)
            with running_prometheus(tmp_path / "prometheus", config, {}) as server:
                server.wait_for(f"count(count_over_time(up[5m]) >= 2) == {len(ways)}")
                targets = server.api("targets", state="active")["activeTargets"]
                answers = {one["labels"]["job"]: one["lastError"] for one in targets}
                assert answers.keys() == ways.keys()
                for job, code in expected.items():
                    assert (code in answers[job]) if code else not answers[job], answers
                assert server.query('count(xpu_agent_build_info{job="token"})')[0][1] == 1
                for result in ("allowed", "forbidden", "unauthenticated"):
                    name = "xpu_agent_metrics_requests_total"
                    assert server.wait_for(f'{name}{{job="token", result="{result}"}} > 0')
                ends = "xpu_agent_metrics_certificate_expiry_timestamp_seconds"
                assert server.wait_for(f'{ends}{{job="token"}} > time()')
            nobody = client_context(authority)
            assert get(agent, "livez", nobody)[0] == 200
            assert get(agent, "readyz", nobody)[0] in (200, 503)
            check_renewal(agent, volume, authority, clients)
            assert agent.end() == 0
        reviews = {
            one
            for one in verbs_used(api.requests(), AGENT)
            if one.resource in ("tokenreviews", "subjectaccessreviews")
        }
        assert reviews == verbs_granted(
            rule for rule in read_roles(COMPONENT) if not rule.non_resource_urls
        )
        assert Right("authentication.k8s.io", "tokenreviews", "create") in reviews
        # scrapes each second, each review once: the results are remembered
        assert len(api.requests(resource="tokenreviews")) == 2


def check_renewal(
    agent: Agent, volume: SecretVolume, authority: trustme.CA, clients: trustme.CA
) -> None:
    """A new connection gets the new certificate, and a broken one is reported and not used."""
    renewed = trustme.CA()

    def is_trusted(one: trustme.CA) -> bool:
        try:
            return get(agent, "livez", client_context(one))[0] == 200
        except urllib.error.URLError:
            return False

    assert is_trusted(authority)
    volume.mount(renewed, ca_crt=clients.cert_pem.bytes())
    agent.wait_until(lambda: is_trusted(renewed), "the renewed certificate")
    volume.mount(authority, tls_crt=b"broken", ca_crt=clients.cert_pem.bytes())
    context = client_context(renewed)
    agent.wait_until(
        lambda: "[-] metrics-access" in get(agent, "healthz?verbose", context)[1],
        "a report of the broken certificate",
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"METRICS__TLS__CERT_FILE": "/none/tls.crt"}, "/none/tls.crt: No such file or directory"),
        ({"METRICS__TLS__CLIENT_AUTH": "require"}, "metrics.tls: needs a certificate"),
        ({"METRICS__WEB_CONFIG_FILE": "/none"}, "/none: No such file or directory"),
        ({"METRICS__AUTH__TOKENS": "true"}, "metrics.auth.tokens: needs a cluster"),
        ({"METRICS__AUTH__AUDIENCES": "a"}, "without effect unless metrics.auth.tokens"),
    ],
)
def test_metrics_that_cannot_be_restricted_as_wanted_are_not_served(
    environment: dict[str, str], message: str
) -> None:
    named = [f"XPU_AGENT_{name}={value}" for name, value in environment.items()]
    process = subprocess.run(
        ["env", *named, *command("run", "--standalone", "--listen", "127.0.0.1:0")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    assert process.returncode == 2
    assert message in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert process.stdout == ""
