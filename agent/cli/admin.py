"""Commands that ask the running agent or act on it, through its admin socket."""

from __future__ import annotations

import argparse
import http
import http.client
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard
from urllib.parse import quote

from agent.cli.options import command_settings
from agent.cli.output import ABSENT_CELL, format_cell, format_document, format_table
from agent.cli.terminal import (
    BOLD,
    PLAIN_TERMINAL,
    Terminal,
    standard_output,
    write_document,
)
from agent.clock import rfc3339
from agent.command_line import ExitStatus
from agent.errors import AgentError, BadConfig
from agent.web.admin_socket import SOCKET_NAME, AdminSocketError, connect_socket, socket_path

ANSWER_DEADLINE_S = 60.0  # a discovery may be in progress
MAX_ANSWER_BYTES = 16 << 20  # bytes; a pod may have hundreds of files
MAX_NAME_LENGTH = 8000  # of a name as a part of a URL: HTTP servers take lines of 8190 bytes
DEFAULT_OUT_FOLDER = "xpu-agent-out"


NOTHING: tuple[object, ...] = (None, "", [], {})


# what sections of an explanation are, for people
TITLES = {
    "grant": "devices that a scheduler allocated",
    "injection": "what a new container gets for its devices",
    "verification": "what was found inside running containers",
    "kubelet": "devices by the kubelet's account",
    "resctrl": "its group for cache and memory bandwidth",
    "eviction": "by the rules of the NodeSLO",
    "strategies": "those that set no new values now",
    "files": "cgroup files that hooks and strategies set",
    "changes": "last writes of these files",
    "pods": "that have it by a scheduler's allocation",
    "resources": "what the device plug-in offers the kubelet",
}
EMPTY_SECTIONS = {
    "grant": "none",
    "injection": "nothing",
    "verification": "no container with devices was looked into",
    "kubelet": "none",
    "resctrl": "none: it shares both with all other programs",
    "eviction": "not known: no strategy has evaluated the pod yet",
    "strategies": "none",
    "files": "none",
    "changes": "none",
    "events": "none",
    "pods": "none",
    "resources": "none",
}
FACTS = {
    "pod": {
        "protected": "its namespace is in enforce.protected_namespaces",
        "qos": "class of Kubernetes",
        "koordinator_qos": "class of Koordinator",
    },
    "file": {
        "original": "before the agent's first write",
        "owner": "last written by",
        "own_values": "written by the agent",
        "refusal": "not written because",
        "contested": "another program writes it again and again",
    },
    "eviction": {
        "protected": "never evicted because",
        "eviction_priority": "annotation koordinator.sh/eviction-priority",
        "priority": "priority of the pod or of its class",
        "label_priority": "label koordinator.sh/priority, else its priority",
    },
}


class ActionRefused(AgentError):
    """The agent did not perform the action; the message has the reason."""


class _AdminConnection(http.client.HTTPConnection):
    """HTTP over the agent's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_DEADLINE_S)
        self._path = path
        self.sock: socket.socket

    def connect(self) -> None:
        """Connect to the socket instead of to an address."""
        self.sock = connect_socket(self._path)
        self.sock.settimeout(ANSWER_DEADLINE_S)


def rescan(arguments: argparse.Namespace) -> int:
    """Let the agent read the host and ask all vendors now."""
    return _post_action(arguments, "rescan", {})


def release(arguments: argparse.Namespace) -> int:
    """Let the agent release a vendor's driver for a while."""
    request = {"vendor": arguments.vendor, "for_s": arguments.for_s}
    return _post_action(arguments, "release", request)


def clear(arguments: argparse.Namespace) -> int:
    """Let the agent clear a device's lasting fault."""
    return _post_action(arguments, "clear", {"device": arguments.device})


def explain(arguments: argparse.Namespace) -> int:
    """Print the agent's explanation of one pod, device or file; status 1 if it has none."""
    subject = arguments.subject
    url = _explanation_url(subject, arguments.name)
    status, reply = _request(arguments, f"explain {subject}", "GET", url)
    if status == http.HTTPStatus.NOT_FOUND:
        print(f"xpu-agent: {reply.get('error', 'not known')}", file=sys.stderr)
        return ExitStatus.PROBLEM_FOUND
    if status != http.HTTPStatus.OK:
        raise ActionRefused(f"explain {subject}: {reply.get('error', f'status {status}')}")
    if arguments.output == "table":
        sys.stdout.write(explanation_text(reply, standard_output()))
    else:
        write_document(format_document(reply, arguments.output))
    return ExitStatus.OK


def _explanation_url(subject: str, name: str) -> str:
    """Return the path of an explanation; raise `BadConfig` for a name that nothing can have."""
    if subject == "pod" and (name.count("/") != 1 or not all(name.split("/"))):
        raise BadConfig(f"explain pod: {name!r} is not NAMESPACE/NAME")
    path = os.path.abspath(name).lstrip("/") if subject == "file" else name
    if not path:
        raise BadConfig(f"explain {subject}: {name!r} names nothing")
    safe = "/" if subject != "device" else ""
    # names of files may have bytes that are no text
    quoted = quote(path, safe=safe, errors="surrogateescape")
    if len(quoted) > MAX_NAME_LENGTH:
        raise BadConfig(f"explain {subject}: the name is too long")
    return f"/api/v1/explain/{subject}/{quoted}"


def _post_action(arguments: argparse.Namespace, action: str, body: dict[str, object]) -> int:
    _, reply = _request(arguments, action, "POST", f"/debug/{action}", json.dumps(body))
    if "done" not in reply:
        raise ActionRefused(f"{action}: {reply.get('error', 'refused')}")
    print(reply["done"])
    return 0


def _request(
    arguments: argparse.Namespace, description: str, method: str, url: str, body: str | None = None
) -> tuple[int, dict[str, object]]:
    """Return status and JSON object of the agent's answer; raise `ActionRefused`."""
    connection = _AdminConnection(_socket_path(arguments))
    try:
        connection.request(method, url, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        reply = json.loads(answer.read(MAX_ANSWER_BYTES))
    except TimeoutError as error:
        raise ActionRefused(f"{description}: no answer within {ANSWER_DEADLINE_S:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ActionRefused(f"{description}: the agent answered nothing of use: {error}") from error
    finally:
        connection.close()
    if not isinstance(reply, dict):
        raise ActionRefused(f"{description}: the agent answered no JSON object")
    return answer.status, reply


def explanation_text(document: Mapping[str, object], terminal: Terminal = PLAIN_TERMINAL) -> str:
    """Return an explanation for people: facts as lines, lists of rows as tables."""
    blocks = []
    for name, value in document.items():
        blocks += _section(name, value, terminal)
    return "\n\n".join(blocks) + "\n"


def _section(name: str, value: object, terminal: Terminal) -> list[str]:
    words = TITLES.get(name, "")
    title = terminal.paint(name.upper().replace("_", " "), BOLD) + (words and f" ({words})")
    if isinstance(value, dict):
        facts = {key: item for key, item in value.items() if not _is_rows(item)}
        labels = FACTS.get(name, {})
        lines = [
            f"  {labels.get(key, key.replace('_', ' '))}: {_fact(item)}"
            for key, item in facts.items()
        ]
        tables = [
            block
            for key, item in value.items()
            if _is_rows(item)
            for block in _section(f"{name} {key}", item, terminal)
        ]
        return ["\n".join((title, *lines)), *tables]
    if _is_rows(value):
        value = [_readable_row(name, row) for row in value if not _is_empty(name, row)]
    if _is_rows(value):
        names = list(dict.fromkeys(key for row in value for key in row))
        rows = [{key: _fact(row.get(key)) for key in names} for row in value]
        return [f"{title}\n{format_table(rows, terminal)}"]
    empty = EMPTY_SECTIONS.get(name, "") if value in NOTHING else ""
    return [f"{title}  {empty or _fact(value)}"]


def _is_empty(name: str, row: Mapping[str, object]) -> bool:
    """Return whether a container gets nothing for devices."""
    others = (_fact(item) for key, item in row.items() if key != "container")
    return name == "injection" and all(other == ABSENT_CELL for other in others)


def _readable_row(name: str, row: Mapping[str, object]) -> Mapping[str, object]:
    """Return the columns that people need of a row; rows of other lists unchanged."""
    if name == "pod containers":
        missed = {"created without hooks because": row.get("missed")} if row.get("missed") else {}
        return {**{key: item for key, item in row.items() if key != "missed"}, **missed}
    if name == "files":
        return _readable_file(row)
    if name == "eviction rules":
        return _readable_rule(row)
    if name.rpartition(" ")[2] == "changes":
        return _readable_change(row)
    return row


def _readable_file(row: Mapping[str, object]) -> Mapping[str, object]:
    value = row.get("requests")
    requests = value if _is_rows(value) else []
    first = requests[0] if requests else {}
    others = [
        f"{request['by']} ({request['mode']}): {request['value']}" for request in requests[1:]
    ]
    return {
        "file": row.get("path"),
        "current": row.get("current"),
        "desired": first.get("value"),
        "by": first.get("by"),
        "because": first.get("source") or first.get("message"),
        "other requests": others,
        "not written because": row.get("refusal"),
    }


def _readable_rule(row: Mapping[str, object]) -> Mapping[str, object]:
    would = "would be " if row.get("state") in ("off", "not configured") else ""
    place = f"{would}candidate {row.get('place')} of {row.get('candidates')}"
    return {
        "rule": row.get("rule"),
        "mode": row.get("mode"),
        "state": row.get("state"),
        "this pod": place if row.get("candidate") else f"no candidate: {row.get('exclusion')}",
        "to release": row.get("to_release"),
        "why": row.get("reason"),
    }


def _readable_change(row: Mapping[str, object]) -> Mapping[str, object]:
    seconds, number = row.get("wall_s"), row.get("errno")
    outcome = row.get("restore") or ("planned" if row.get("planned") else "written")
    return {
        "time": rfc3339(seconds) if isinstance(seconds, (int, float)) else None,
        "by": row.get("owner"),
        "old": row.get("old"),
        "new": row.get("new"),
        "result": f"refused: {os.strerror(number)}"
        if isinstance(number, int) and number
        else outcome,
        "because": row.get("source") or row.get("message"),
        "file": row.get("path"),
    }


def _is_rows(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _fact(value: object) -> str:
    if isinstance(value, dict):
        pairs = [
            f"{key} {_fact(item)}" for key, item in value.items() if item not in (None, [], {})
        ]
        return ", ".join(pairs) or ABSENT_CELL
    if isinstance(value, list):
        items = (
            " ".join(map(_fact, item)) if isinstance(item, list) else _fact(item) for item in value
        )
        return "; ".join(items) or ABSENT_CELL
    return format_cell(value)


def _socket_path(arguments: argparse.Namespace) -> str:
    """Return the socket of the option, else that of the settings, else the first that exists."""
    if arguments.socket:
        return str(arguments.socket)
    settings = command_settings(arguments)
    setting = settings.admin.socket
    if setting:
        path = socket_path(setting, "")
        if path is None:
            raise AdminSocketError("admin.socket: off; set it to a path, and restart the agent")
        return path
    usual = [
        str(Path(folder, SOCKET_NAME)) for folder in (settings.node.run_dir, DEFAULT_OUT_FOLDER)
    ]
    return next((path for path in usual if os.path.exists(path)), usual[0])
