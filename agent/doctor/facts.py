"""Facts about a node that only checks use: the API server's answers, folders, sockets, clock."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.snapshot.vendor import NodeRequirements

ANSWERS, REFUSED, HANGS, ABSENT, OTHER = "answers", "refused", "hangs", "absent", "other"


class EndpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt to reach a socket or an address."""

    address: str
    # answers, refused, hangs, absent (no such socket), other (another program answers)
    state: str
    detail: str = ""


class FolderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that the agent writes, and the file system below it."""

    path: str
    exists: bool = True
    is_writable: bool = True
    is_read_only: bool = False  # the file system is mounted read-only
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None  # None: the file system has no fixed number


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of changes, as it is on the disk."""

    path: str
    lines: int = 0
    damaged: int = 0
    newer: int = 0  # lines of a newer version
    problem: str = ""  # why it cannot be read
    is_put_aside: bool = False  # a damaged copy lies beside it


class LockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The lock of the node, and the process that its file names."""

    path: str
    holder: str = ""  # for people; empty: the file names nobody
    version: str = ""  # of the holder
    has_left: bool = False  # the holder wrote that it stops
    is_locked: bool | None = None  # by any process; None: unknown


class ClockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's clock as adjtimex(2) describes it."""

    is_synchronised: bool
    max_error_s: float = 0.0


class ApiReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the API server to one request."""

    body: object = None
    code: int | None = None  # HTTP status of a refusal; None: no answer, or success
    problem: str = ""  # empty: success

    @property
    def document(self) -> Mapping[str, object]:
        """Return the body if it is an object; else an empty one."""
        return self.body if isinstance(self.body, Mapping) else {}


class ApiFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's answers to the questions of the checks.

    Requests that had no answer in time are not in `replies`.
    """

    target: str = ""  # for people; empty: no API server is configured
    absence: str = ""  # why none was asked
    problem: str = ""  # why it cannot be reached
    node_name: str = ""
    namespace: str = ""  # of the agent's own pod
    is_own_account: bool = True  # False: of a person's kubeconfig
    wall_s: float = 0.0  # when the answers came
    clock_skew_s: float | None = None  # by how much its clock is ahead; 0: within its precision
    replies: Mapping[str, ApiReply] = {}


class VendorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the node has of a vendor's requirements."""

    requirements: NodeRequirements
    module_version: str = ""  # of the loaded kernel module; empty: unknown
    libraries: tuple[str, ...] = ()  # paths of the libraries whose name ends with a version
    nodes: frozenset[str] = frozenset()  # existing ones of `requirements.device_nodes`
    # how names of sockets of the vendor's own device plug-in start
    socket_prefixes: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()  # needed by daemons: "10de:0680"


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A container whose environment requests devices."""

    pod_uid: str
    container_id: str
    variable: str
    value: str
