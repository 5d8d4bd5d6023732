"""Which proxy leads to a server."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.endpoint import parse_proxy, proxy_for
from agent.kube.errors import NoApiServer

API = "https://10.96.0.1:443"


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ({"https_proxy": "p:3128"}, "http://p:3128"),
        ({"HTTPS_PROXY": "https://p"}, "https://p"),
        ({"HTTPS_PROXY": "http://[fd00::9]:80"}, "http://[fd00::9]:80"),
        ({"HTTP_PROXY": "http://p:3128"}, None),
        ({"HTTPS_PROXY": "http://big", "https_proxy": "http://small"}, "http://big"),
        ({"HTTPS_PROXY": "  "}, None),
    ],
)
def test_the_environment_names_the_proxy(environ: dict[str, str], proxy: str | None) -> None:
    chosen_proxy = proxy_for(API, environ)
    assert (chosen_proxy and chosen_proxy.url) == proxy


def test_plain_http_has_a_proxy_of_its_own() -> None:
    proxy = proxy_for("http://10.0.0.1:8001", {"HTTP_PROXY": "p", "HTTPS_PROXY": "q"})
    assert proxy is not None
    assert proxy.url == "http://p"


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_direct"),
    [
        (API, "10.96.0.1", True),
        (API, "10.96.0.0/12", True),
        (API, "foo, 10.96.0.0/12 ,bar", True),
        (API, "10.96.0.1:443", True),
        (API, "10.96.0.1:6443", False),
        (API, "10.96.0.10", False),
        (API, "192.168.0.0/16", False),
        (API, "10.96.0.0/99", False),
        (API, "*", True),
        (API, "", False),
        ("https://[fd00:10:96::1]:443", "fd00:10:96::/108", True),
        ("https://[fd00:10:96::1]:443", "fd00:10:96:0::1", True),
        ("https://[fd00:10:96::1]:443", "[fd00:10:96::1]:443", True),
        ("https://[fd00:10:96::1]:443", "10.96.0.0/12", False),
        ("https://kubernetes.default.svc", ".svc", True),
        ("https://kubernetes.default.svc", "svc", True),
        ("https://kubernetes.default.SVC", "*.svc", True),
        ("https://kubernetes.default.svc", "vc", False),
        ("https://kubernetes.default.svc:6443", "default.svc:6443", True),
        ("https://svc", ".svc", False),
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("https://localhost:6443", "", True),
    ],
)
def test_no_proxy_is_read_as_go_reads_it(url: str, no_proxy: str, *, is_direct: bool) -> None:
    proxy = proxy_for(url, {"HTTPS_PROXY": "http://p", "NO_PROXY": no_proxy})
    assert (proxy is None) == is_direct


def test_a_password_is_sent_and_never_printed() -> None:
    proxy = parse_proxy("http://us%40er:se%3Acret@p:1", "HTTPS_PROXY")
    assert (proxy.user, proxy.password) == ("us@er", "se:cret")
    assert proxy.headers() == {"Proxy-Authorization": "Basic dXNAZXI6c2U6Y3JldA=="}
    assert "cret" not in f"{proxy} {proxy!r} {proxy.url}"
    assert parse_proxy("http://p", "x").headers() == {}


@pytest.mark.parametrize(
    "text", ["socks5://p:1", "http://", "ftp://p", "http://[::1", "http://p:x"]
)
def test_a_proxy_that_cannot_be_used_is_refused_with_where_it_stands(text: str) -> None:
    with pytest.raises(NoApiServer, match="HTTPS_PROXY"):
        proxy_for(API, {"HTTPS_PROXY": text})


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_breaks_it(proxy: str, no_proxy: str) -> None:
    with contextlib.suppress(NoApiServer):
        proxy_for(API, {"HTTPS_PROXY": proxy, "NO_PROXY": no_proxy})
