"""Each reason that the code can emit has an entry of the runbook, and each entry a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from agent.devices import joiner
from agent.kube import eviction
from agent.runbook.entries import OWN_ENTRIES
from agent.runbook.entries.alerts import ALERT_ENTRIES
from agent.snapshot.allocation import RefusalReason, VerificationCause
from agent.snapshot.cluster import KubeletStatus
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from plugins.vendors.ascend.library import codes as ascend_codes
from plugins.vendors.nvidia.library import codes as nvidia_codes

ROOT = Path(__file__).resolve().parents[3]
RUNBOOK = build_runbook(load_vendors())
OWN = frozenset(OWN_ENTRIES.by_reason)
HUMPS = re.compile(r"(?:[A-Z][a-z0-9]+){2,}|[A-Z][A-Za-z0-9]*[a-z][A-Z][A-Za-z0-9]*")
WORD = re.compile(r"[A-Z][A-Za-z0-9]+")
# Reasons of events and states that report no problem.
GOOD = frozenset(
    {
        "AllHealthy",
        "AllSet",
        "AllocationVerified",
        "CardAnswers",
        "CauseGone",
        "DeviceAppeared",
        "DeviceHealthy",
        "DeviceInfoChanged",
        "DeviceProbing",
        "DriverBound",
        "DriverCame",
        "FabricReady",
        "FaultCleared",
        "RdmaDevicesChanged",
        "RuntimeAsks",
        "RuntimeBack",
        "VendorWorkerReady",
        "VendorWorkerReleased",
        "VirtualFunctionsChanged",
        "WarningGone",
    }
)


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "runbook" not in path.as_posix():
                yield path


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the strings that an expression can be, not those of its calls and comparisons."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from strings(body)
            yield from strings(orelse)
        case ast.BoolOp(values=values):
            for value in values:
                yield from strings(value)


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the module's constants that are one string."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                        found[name.id] = str(value.value)
    return found


# functions whose first argument is a reason, or whose second one is
FIRST = {"HealthFinding", "EventReported", "RegistrationError", "ServerStartError",
         "AllocationError", "ConnectionClosed", "abort", "_check", "_report_event"}  # fmt: skip
SECOND = {"WorkerError", "set_state", "update", "_mark_missed", "mark_missed", "_add_problem",
          "_report_event"}  # fmt: skip


MAKES_REASONS = re.compile(r"\breason=|" + "|".join(rf"\b{name}\(" for name in FIRST | SECOND))


def emitted(path: Path) -> Iterator[str]:
    """Yield the reasons that a module names where a reason is made."""
    source = path.read_text(encoding="utf-8")
    if not MAKES_REASONS.search(source):
        return
    tree = ast.parse(source)
    names = constants(tree)

    def values(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name) and node.id in names:
            yield names[node.id]
        yield from strings(node)

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        called = (
            function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        )
        arguments = [k.value for k in node.keywords if k.arg == "reason"]
        arguments += node.args[:1] if called in FIRST else []
        arguments += node.args[1:2] if called in SECOND else []
        yield from (text for one in arguments for text in values(one) if WORD.fullmatch(text))


def every_emitted_reason() -> dict[str, str]:
    """Return where each reason is made, by reason."""
    return {
        reason: path.relative_to(ROOT).as_posix()
        for path in sources("agent", "plugins/shared", "plugins/vendors")
        for reason in emitted(path)
    }


def vendor_of(place: str) -> str:
    parts = place.split("/")
    return parts[2] if parts[:2] == ["plugins", "vendors"] else ""


# strings in the place of reasons, or of their form, that are none
NO_REASONS = frozenset(
    {
        "AcceleratorsHealthy",
        "AuthenticAMD",
        "CreateCATGroup",
        "DaemonSet",
        "DeviceInjectionReady",
        "DeviceRepairRequired",
        "DisruptionBudget",
        "EnforcementHealthy",
        "GetAllocatableResources",
        "InfiniBand",
        "KubepodsBesteffort",
        "KubepodsBurstable",
        "NamespaceTerminating",
        "NoFault",
        "NoPod",
        "NoRepairRequired",
        "NodeResourceTopology",
        "NotFound",
        "PodNotListed",
        "RequestClientCert",
        "ResourceVersionTooLarge",
        "SeveralContainers",
        "Timeout",
    }
)


def test_every_reason_in_the_code_has_an_entry() -> None:
    reasons = every_emitted_reason()
    assert len(reasons) > 150
    missing = {
        reason: place
        for reason, place in reasons.items()
        if RUNBOOK.find(vendor_of(place), reason, "") is None
        and reason not in GOOD | NO_REASONS
        and vendor_of(place) not in ("fake", "template")
    }
    assert missing == {}


# a constant, or several, that are one string each
ASSIGNMENT = re.compile(
    r'^[A-Z_][A-Z_0-9]*(?:, [A-Z_0-9]+)* = ("\w+"(?:, "\w+")*)(?:  #.*)?$', re.M
)


def test_every_constant_of_the_form_of_a_reason_has_an_entry_or_is_listed_as_none() -> None:
    constants_of_code = {
        value: path.relative_to(ROOT).as_posix()
        for path in sources("agent", "plugins/shared", "plugins/vendors")
        for line in ASSIGNMENT.findall(path.read_text(encoding="utf-8"))
        for value in re.findall(r'"([A-Za-z0-9]+)"', line)
        if HUMPS.fullmatch(value)
    }
    assert len(constants_of_code) > 80
    missing = {
        value: place
        for value, place in constants_of_code.items()
        if RUNBOOK.find(vendor_of(place), value, "") is None and value not in GOOD | NO_REASONS
    }
    assert missing == {}, "write an entry in agent/runbook/entries, or list it in NO_REASONS"


def test_every_entry_is_of_a_reason_that_the_code_has() -> None:
    literals = {
        text
        for folder in ("agent", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parts[-2] != "entries" and not path.name.startswith("runbook")
        for pattern in (r'"([A-Za-z][A-Za-z0-9]+)"', r"^class (\w+)\(")
        for text in re.findall(pattern, path.read_text(encoding="utf-8"), re.M)
    }
    made = re.compile(
        r"S?Xid.*|HealthCode|NVMLError|Incident[0-9]+|(?:Kubelet|Admin)[A-Z][a-z]+"
        r"|(?:Pci|Cpu|Numa)[A-Z][A-Za-z]+"
    )
    without = {
        entry.heading
        for entry in RUNBOOK.entries()
        if entry.reason not in literals and not made.fullmatch(entry.reason)
    }
    without -= {entry.heading for entry in ALERT_ENTRIES}  # that `tests/unit/observe` compares
    assert without - {"Unlisted"} == set()


def test_every_warning_of_the_readers_of_the_host_has_an_entry() -> None:
    """A warning is `pci_limit: message`, and its reason is `PciLimit`."""
    pci = (ROOT / "agent/host/pci.py").read_text()
    kinds = set(re.findall(r'warnings\.add\("([a-z_]+)"', pci))
    for name in ("cpu", "numa"):
        source = (ROOT / f"agent/topology/{name}.py").read_text()
        kinds |= set(re.findall(r'f"([a-z]+_[a-z_]+): ', source))
    assert {"pci_limit", "cpu_topology_inconsistent", "numa_overlap"} < kinds
    assert {joiner._warning_problem(f"{kind}: m").reason for kind in kinds} <= OWN


# errors that are handled where they are raised, or have a reason of their own
HANDLED = frozenset({"AgentError", "WorkerError", "NotAHost", "PublishError", "UnknownTarget"})


def test_every_error_of_vendors_has_an_entry_because_its_class_may_be_the_reason() -> None:
    """A worker reports an error by the name of its class, and so does one that makes slices."""
    bases = {
        name: (base, path.relative_to(ROOT).as_posix())
        for path in (ROOT / "agent/errors.py", *sources("plugins/shared", "plugins/vendors"))
        for name, base in re.findall(
            r"^class (\w+)\((\w+)\):", path.read_text(encoding="utf-8"), re.M
        )
    }

    def is_error(name: str) -> bool:
        return name == "AgentError" or (name in bases and is_error(bases[name][0]))

    errors = {name: place for name, (_, place) in bases.items() if is_error(name)}
    assert len(errors) > 15
    missing = {
        name
        for name, place in errors.items()
        if name not in HANDLED and RUNBOOK.find(vendor_of(place), name, "") is None
    }
    assert missing == set()


def test_an_error_of_an_nvswitch_has_an_entry() -> None:
    entry = RUNBOOK.find("nvidia", "SXid20034", "")
    assert entry is not None
    assert entry.anchor == "nvidia-sxid"


def test_every_return_code_of_a_vendor_library_has_an_entry() -> None:
    assert {name for name in ascend_codes._NAMES.values() if not RUNBOOK.find("ascend", name, "")} \
        == set()  # fmt: skip
    assert {r for r in nvidia_codes.REASONS.values() if not RUNBOOK.find("nvidia", r, "")} == set()
    assert RUNBOOK.find("nvidia", nvidia_codes.reason_of(4711), "") is not None


def test_every_vendor_has_no_entry_that_only_repeats_an_own_one() -> None:
    repeated = {
        entry.heading
        for entry in RUNBOOK.entries()
        if entry.vendor
        and (own := OWN_ENTRIES.by_reason.get(entry.reason)) is not None
        and (own.meaning, own.remedy, own.action) == (entry.meaning, entry.remedy, entry.action)
    }
    assert repeated == set()


def test_every_refusal_of_an_allocation_and_every_cause_of_a_verdict_has_an_entry() -> None:
    values = {one.value for one in RefusalReason} | {one.value for one in VerificationCause}
    assert values <= OWN


def test_every_action_at_the_admin_socket_and_every_outcome_of_an_eviction_has_an_entry() -> None:
    source = (ROOT / "agent/web/admin.py").read_text()
    actions = re.findall(r'add_post\("/debug/(\w+)"', source)
    assert len(actions) > 3
    assert {f"Admin{action.capitalize()}" for action in actions} <= OWN
    assert {eviction.SUCCESS, eviction.FAILURE, eviction.PLANNED} <= OWN


def test_every_state_of_the_kubelet_has_an_entry() -> None:
    source = (ROOT / "agent/snapshot/cluster.py").read_text()
    states = re.findall(r'^KUBELET_\w+ = "(\w+)"', source, re.M)
    assert KubeletStatus().pods in states
    assert {f"Kubelet{state.capitalize()}" for state in states if state != "ok"} <= OWN
