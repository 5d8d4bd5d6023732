"""What comes in, before anything is looked up: the right object, known fields, decodable times."""

from __future__ import annotations

from tests.apiserver.refusal import bad_request, internal
from tests.apiserver.schema.times import check_times
from tests.apiserver.schema.versions import stored_form
from tests.apiserver.schema.walk import Findings, walk
from tests.apiserver.store.target import Object, Target, Way


def admit(
    target: Target, sent: Object, way: Way, *, checked: bool
) -> tuple[Object, tuple[str, ...]]:
    """Return what a client sent as it would be stored, and which fields were dropped."""
    check_envelope(target, sent)
    body = stored_form(target.kind, target.group, sent)
    if not checked:
        return {**body, "metadata": dict(body["metadata"])}, ()
    if not target.kind.custom:
        check_times(target.kind.kind, target.version, body)
    findings = Findings()
    records = walk(target.shape, body, "", findings)
    assert isinstance(records, dict)
    if findings.dropped and way.field_validation == "Strict":
        reports = ", ".join(f'unknown field "{path}"' for path in findings.dropped)
        raise bad_request(
            f"{target.kind.kind} in version {target.version!r} cannot be handled as a "
            f"{target.kind.kind}: strict decoding error: {reports}"
        )
    return records, tuple(findings.dropped)


def admit_config(target: Target, config: Object, *, checked: bool) -> Object:
    """Return an applied configuration; what the schema lacks is a 500, as it really is."""
    check_envelope(target, config, must_name_kind=True)
    body = stored_form(target.kind, target.group, config)
    if "managedFields" in body["metadata"]:
        raise bad_request("metadata.managedFields must be nil")
    if checked:
        if not target.kind.custom:
            check_times(target.kind.kind, target.version, body)
        findings = Findings()
        walk(target.shape, body, "", findings)
        wrong = [f".{path}: field not declared in schema" for path in findings.dropped]
        wrong += findings.mistyped
        if wrong:
            reports = (
                wrong[0] if len(wrong) == 1 else "errors:\n" + "\n".join(f"  {w}" for w in wrong)
            )
            where = f"{target.namespace}/{target.name}; {target.api_version}"
            kind = target.kind.kind
            raise internal(f"failed to create typed patch object ({where}, Kind={kind}): {reports}")
    spared = {"status"} if target.kind.status and not target.subresource else set()
    spared |= {"spec"} if target.subresource else set()
    return {key: value for key, value in body.items() if key not in spared}


def check_envelope(target: Target, sent: Object, *, must_name_kind: bool = False) -> None:
    """Refuse a body that is not the object of its path."""
    if not isinstance(sent, dict) or not isinstance(sent.get("metadata", {}), dict):
        raise bad_request("the object provided is unrecognized (must be an object with metadata)")
    version, kind = sent.get("apiVersion", ""), sent.get("kind", "")
    if must_name_kind and not (version and kind):
        raise bad_request("apiVersion and kind must be set in an apply configuration")
    if version and version != target.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({target.api_version})"
        )
    if kind and kind != target.kind.kind:
        raise bad_request(f"{kind} does not match the expected kind {target.kind.kind}")
    metadata = sent.setdefault("metadata", {})
    name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
    if name != target.name and (name or not must_name_kind):
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    if namespace and namespace != target.namespace:
        raise bad_request(
            f"the namespace of the object ({namespace}) does not match the namespace on the "
            f"request ({target.namespace})"
        )
