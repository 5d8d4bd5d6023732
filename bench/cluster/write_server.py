"""The strict API server in a process of its own, and the Device that is written to it."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent.objects.device import DevicePublisher
from agent.snapshot.publications import DesiredObject
from tests.factory import snapshot

UID = "00000000-0000-4000-8000-000000000001"
CARDS = 16


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is, and the folder of the pod's account."""

    url: str
    account: str
    kubeconfig: str

    @property
    def ca_file(self) -> str:
        """Return whom to trust."""
        return f"{self.account}/ca.crt"

    @property
    def token(self) -> str:
        """Return the account's token."""
        return Path(self.account, "token").read_text()


@contextlib.contextmanager
def api_server(*nodes: str) -> Iterator[Served]:
    """Serve Nodes until the block ends; schemas are not checked, which no real server does."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.apiserver", "--no-validation", "--dir", folder]
        process = subprocess.Popen(
            [*command, "--nodes", *nodes], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().split()[-1]
            yield Served(
                url=url,
                account=f"{folder}/serviceaccount",
                kubeconfig=f"{folder}/agent.kubeconfig",
            )
        finally:
            process.terminate()
            process.wait()


def devices() -> tuple[DesiredObject, DesiredObject]:
    """Return a Device with sixteen cards, and the same one after one of them has failed."""
    (rendered,) = DevicePublisher().render(snapshot(), 0.0)
    body: dict[str, Any] = copy.deepcopy(dict(rendered.body))
    owner = {"apiVersion": "v1", "kind": "Node", "name": rendered.name, "uid": UID}
    body["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    cards = [card for card in body["spec"]["devices"] if card["type"] == "gpu"]
    more = [{**card, "minor": card["minor"] + 8, "id": f"{card['id']}b"} for card in cards]
    body["spec"]["devices"] = [*cards, *more][:CARDS]
    failed = copy.deepcopy(body)
    card = failed["spec"]["devices"][3]
    card["health"] = False
    card["conditions"][0] |= {"status": "False", "reason": "Xid79", "message": "gone"}
    return tuple(msgspec.structs.replace(rendered, body=b) for b in (body, failed))  # type: ignore[return-value] # two
