"""What this process believes besides what it was given."""

from __future__ import annotations

import os

from agent.kube.endpoint import (
    ApiTarget,
    InClusterTarget,
    KubeconfigTarget,
    disable_system_authorities,
)

AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


def authorities_of(target: ApiTarget) -> str:
    environ = {"SSL_CERT_FILE": AUTHORITIES}
    disable_system_authorities(target, environ)
    return environ["SSL_CERT_FILE"]


def test_a_pod_believes_no_authority_but_its_cluster_s() -> None:
    assert authorities_of(InClusterTarget(url="https://192.0.2.1:443")) == os.devnull


def test_a_kubeconfig_may_mean_the_authorities_of_the_machine() -> None:
    assert authorities_of(KubeconfigTarget(paths="config")) == AUTHORITIES
