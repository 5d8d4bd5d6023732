"""Secrets are removed from everything that leaves a node; what is no secret stays."""

from __future__ import annotations

import base64
import json

import pytest

from agent.recording.pseudonyms import RecordingContents
from agent.recording.redaction import REMOVED, redact_all, redact_data, redact_file, redact_text
from agent.recording.tree import TreeFiles

KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
PEM = f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
PASSWORD = "hunter2-Zebra"
KUBECONFIG = f"""
users:
- name: admin
  user:
    client-key-data: {base64.b64encode(PEM.encode()).decode()}
    token: {PASSWORD}
    password: "{PASSWORD}"
"""
POD = {
    "spec": {
        "containers": [
            {
                "name": "main",
                "env": [
                    {"name": "DB", "value": f"postgres://app:{PASSWORD}@db/x"},
                    {"name": "PLAIN", "value": PASSWORD},
                    {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
            }
        ]
    }
}
SECRETS = (KEY, JWT, PASSWORD, base64.b64encode(PEM.encode()).decode()[:40])

TEXTS = [
    PEM,
    json.dumps(PEM),
    f"cut off: -----BEGIN RSA PRIVATE KEY-----\n{KEY}",
    f"Authorization: Bearer {JWT}",
    f"authorization: Basic {base64.b64encode(PASSWORD.encode()).decode()}",
    f'GET /api: 401 {{"Authorization":"Bearer {PASSWORD}"}}',
    f"token={JWT}",
    KUBECONFIG,
    f"root=/dev/sda1 cifs.password={PASSWORD} quiet",
    f"//srv/x /mnt cifs rw,username=u,password={PASSWORD},uid=0 0 0",
    f"dial https://user:{PASSWORD}@registry.example/v2/",
    f"export API_KEY='{PASSWORD}'",
    f'escaped: {{\\"password\\":\\"{PASSWORD}\\"}}',
    "$2b$12$abcdefghijklmnopqrstuuvwxyz0123456789ABCDEFGHIJKLMNO",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_in_a_text_is_removed_and_a_mark_stays(text: str) -> None:
    redacted = redact_text(text)
    assert REMOVED in redacted
    assert not [secret for secret in SECRETS if secret in redacted]
    assert base64.b64encode(PASSWORD.encode()).decode() not in redacted
    assert redact_text(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        'xpu_agent_api_errors_total{kind="token_read_errors"} 3',
        '"token_read_errors": 0, "ca_read_errors": 0',
        "metrics.auth.token_review: true",
        "secrets is forbidden: the account may get secrets",
        "BOOT_IMAGE=/vmlinuz-6.1.0 root=UUID=4a1f psi=1 iommu=pt",
        "0000:3b:00.0 NVIDIA H100 80GB HBM3 GPU-00000000-0000-4000-8000-000000000000",
        "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_values_of_variables_of_a_pod_are_removed_and_their_names_stay() -> None:
    redacted = json.dumps(redact_data(POD))
    assert PASSWORD not in redacted
    assert all(name in redacted for name in ("DB", "PLAIN", "REF", "secretKeyRef"))
    # an annotation with a whole manifest
    nested = {"annotations": [["xpu-agent.io/x", json.dumps(POD)]], "namespace": "n"}
    assert PASSWORD not in json.dumps(redact_data(nested))
    process = {"env": [f"PASSWORD={PASSWORD}", "HOME"]}
    assert redact_data(process) == {"env": [f"PASSWORD={REMOVED}", "HOME"]}


def test_a_setting_that_is_a_secret_is_removed_and_others_stay() -> None:
    rows = [
        {"key": "metrics.auth.password", "value": PASSWORD, "origin": "file"},
        {"key": "metrics.auth.token_review", "value": "true", "origin": "file"},
        {"key": "api.kubeconfig", "value": "/root/.kube/config", "origin": "file"},
    ]
    assert redact_data({"settings": rows}) == {
        "settings": [{**rows[0], "value": REMOVED}, rows[1], rows[2]]
    }


def test_counters_and_switches_with_the_name_of_a_secret_stay() -> None:
    data = {"token_read_errors": 3, "token": None, "password": "", "secret": True}
    assert redact_data(data) == data


def test_a_file_without_a_secret_keeps_its_bytes() -> None:
    for name, data in {
        "agent.json": b'{ "a":1,\n "b": [ ] }',
        "metrics.txt": b"x 1\n\xff\n",
        "broken.json": b'{"a": ',
    }.items():
        assert redact_file(name, data) == data


def test_a_broken_document_and_one_that_is_too_deep_lose_their_secrets_too() -> None:
    broken = f'{{"token": "{PASSWORD}", '.encode()
    assert PASSWORD.encode() not in redact_file("agent.json", broken)
    deep: object = PASSWORD
    for _ in range(200):
        deep = {"token": [deep]}
    assert PASSWORD not in json.dumps(redact_data(deep))


def test_files_of_the_host_and_tapes_lose_their_secrets_and_pci_configurations_stay() -> None:
    config = b"\x86\x80password=abcdefgh\x00"
    tree = TreeFiles.from_entries(
        {
            "/proc/cmdline": f"quiet ds=nocloud;password={PASSWORD}\n".encode(),
            "/sys/bus/pci/devices/0000:00:01.0/config": config,
        }
    )
    contents = RecordingContents(
        tree=tree,
        tapes={"nvidia": f'{{"answer": "Bearer {JWT}"}}\n'.encode()},
        texts={"healthz.txt": f"[-] api-server 401: Bearer {JWT}\n".encode()},
    )
    redacted = redact_all(contents)
    assert PASSWORD.encode() not in redacted.tree.read("/proc/cmdline")
    assert redacted.tree.read("/proc/cmdline").startswith(b"quiet ds=nocloud;password=(removed)")
    assert redacted.tree.read("/sys/bus/pci/devices/0000:00:01.0/config") == config
    assert JWT.encode() not in redacted.tapes["nvidia"] + redacted.texts["healthz.txt"]


@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_secret_that_is_longer_than_any_limit_is_removed_too(quote: str) -> None:
    text = f"password: {quote}{'lorem ipsum ' * 2000}{PASSWORD}{quote} after"
    redacted = redact_text(text)
    assert PASSWORD not in redacted
    assert redacted.endswith(" after")


# each repeats the start of a pattern, so that a search that begins again at each would not end
@pytest.mark.parametrize(
    "start", ["a", "token", "token=", 'secret="', "password:'", "-----BEGIN X-----", "://a:", "eyJ"]
)
def test_a_hostile_file_is_searched_once(start: str) -> None:
    text = start * (300_000 // len(start))
    assert redact_text(redact_text(text)) == redact_text(text)
