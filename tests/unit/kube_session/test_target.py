"""Where the API server is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.config.cluster import ApiSettings
from agent.errors import BadConfig
from agent.kube.endpoint import InClusterTarget, KubeconfigTarget, find_api_target, server_url
from agent.kube.errors import NoApiServer

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def where(
    environ: Mapping[str, str], *files: str, kubeconfig: str = "", context: str = ""
) -> InClusterTarget | KubeconfigTarget:
    settings = ApiSettings(kubeconfig=kubeconfig, context=context)
    return find_api_target(environ, settings.kubeconfig, settings.context, files.__contains__)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        (POD, "https://10.96.0.1:443"),
        ({**POD, "KUBERNETES_SERVICE_HOST": "fd00:10:96::1"}, "https://[fd00:10:96::1]:443"),
        ({**POD, "KUBERNETES_SERVICE_HOST": "[fd00::1]"}, "https://[fd00::1]:443"),
        ({**POD, "KUBERNETES_SERVICE_PORT": "6443"}, "https://10.96.0.1:6443"),
        ({"KUBERNETES_SERVICE_HOST": "api.local"}, "https://api.local:443"),
    ],
)
def test_in_a_pod_the_service_of_its_environment_is_used(
    environ: Mapping[str, str], url: str
) -> None:
    target = where(environ, TOKEN)
    assert isinstance(target, InClusterTarget)
    assert target.url == url
    assert url in str(target)


def test_a_pod_may_have_its_account_in_another_folder() -> None:
    environ = {**POD, "XPU_AGENT_SERVICE_ACCOUNT": "/account"}
    assert where(environ, "/account/token") == InClusterTarget(
        url="https://10.96.0.1:443", folder="/account"
    )


def test_a_kubeconfig_of_the_settings_wins_over_the_pods_account() -> None:
    target = where(POD, TOKEN, "/etc/k", kubeconfig="/etc/k", context="blue")
    assert target == KubeconfigTarget(paths="/etc/k", context="blue")
    assert "/etc/k" in str(target)
    assert "blue" in str(target)


@pytest.mark.parametrize(
    ("environ", "files", "paths"),
    [
        ({"KUBECONFIG": "/a:/b"}, ["/b"], "/a:/b"),
        ({"KUBECONFIG": "~/k", "HOME": "/home/x"}, ["/home/x/k"], "/home/x/k"),
        ({"HOME": "/home/x"}, ["/home/x/.kube/config"], "/home/x/.kube/config"),
        ({"KUBECONFIG": ":", "HOME": "/h"}, ["/h/.kube/config"], "/h/.kube/config"),
        (POD | {"KUBECONFIG": "/a"}, ["/a"], "/a"),  # in a pod, but without a token
    ],
)
def test_outside_a_pod_the_kubeconfig_is_found_as_kubectl_finds_it(
    environ: Mapping[str, str], files: list[str], paths: str
) -> None:
    assert where(environ, *files) == KubeconfigTarget(paths=paths)


@pytest.mark.parametrize(
    ("environ", "files", "kubeconfig", "words"),
    [
        ({}, [], "", ["not in a pod", "KUBECONFIG", "--standalone"]),
        (POD, [], "", ["in a pod", TOKEN, "automountServiceAccountToken"]),
        # kubectl does not fall back either, and it would be another cluster
        ({"KUBECONFIG": "/gone", "HOME": "/h"}, ["/h/.kube/config"], "", ["KUBECONFIG: /gone"]),
        (POD, [TOKEN], "/gone", ["api.kubeconfig", "/gone"]),
        (POD | {"KUBERNETES_SERVICE_HOST": "[::"}, [TOKEN], "", ["_HOST: no URL of a server"]),
        (POD | {"KUBERNETES_SERVICE_PORT": "no"}, [TOKEN], "", ["KUBERNETES_SERVICE_PORT"]),
        (POD | {"KUBERNETES_SERVICE_PORT": "9" * 5000}, [TOKEN], "", ["is no port"]),
    ],
)
def test_what_leads_nowhere_says_what_to_do(
    environ: Mapping[str, str], files: list[str], kubeconfig: str, words: list[str]
) -> None:
    with pytest.raises(NoApiServer) as caught:
        where(environ, *files, kubeconfig=kubeconfig)
    assert all(word in str(caught.value) for word in words)


def test_a_context_of_no_kubeconfig_is_refused_and_not_passed_over() -> None:
    with pytest.raises(BadConfig, match=r"^api\.context: .* set api\.kubeconfig"):
        where(POD, TOKEN, context="blue")
    assert where({"KUBECONFIG": "/a"}, "/a", context="blue") == KubeconfigTarget(
        paths="/a", context="blue"
    )


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1:6443", "ftp://x", "https://", "https://:1", "https://[::1", "https://x:99999"],
)
def test_what_is_no_url_of_a_server_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(NoApiServer) as caught:
        server_url(text, "/k: server")
    assert str(caught.value) == "/k: server: no URL of a server, as https://10.0.0.1:6443 is"


def test_a_url_of_a_server_may_have_a_path() -> None:
    assert server_url("https://[fd00::1]:6443/k8s/c/", "x") == "https://[fd00::1]:6443/k8s/c"
