"""The three patches that are not an apply: JSON patch, merge patch, strategic merge patch."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.apiserver.apply.typed import is_keyed
from tests.apiserver.refusal import Refusal, bad_request
from tests.apiserver.schema.shape import ANY, Shape


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target after an RFC 7386 patch: null deletes, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_patch(shape: Shape, target: Any, patch: Any) -> Any:
    """Return the target after a strategic merge: as a merge patch, but lists with keys merge."""
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {key: value for key, value in patch.items() if key != "$patch"}
        merged = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if key.startswith(("$setElementOrder/", "$retainKeys", "$patch")):
                continue
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = strategic_patch(shape.field(key) or ANY, merged.get(key), value)
        return merged
    if isinstance(patch, list) and is_keyed(shape) and shape.keys:
        return _strategic_list(shape, target if isinstance(target, list) else [], patch)
    return patch


def _strategic_list(shape: Shape, target: list[Any], patch: list[Any]) -> list[Any]:
    key = shape.keys[0]
    items = {item.get(key): item for item in target}
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise bad_request(f"map: {change} does not contain declared merge key: {key}")
        if change.get("$patch") == "delete":
            items.pop(change[key], None)
        else:
            items[change[key]] = strategic_patch(
                shape.element or ANY, items.get(change[key]), change
            )
    return list(items.values())


def json_patch(target: Any, operations: Any) -> Any:
    """Return the target after an RFC 6902 patch; a failed `test` or a missing path is a 422."""
    if not isinstance(operations, list):
        raise bad_request("json patch: must be a list of operations")
    document = {"": deepcopy(target)}
    for operation in operations:
        try:
            _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {error!r}"
            raise Refusal(422, "Invalid", message) from error
    return document[""]


def _operate(document: dict[str, Any], operation: dict[str, Any]) -> None:
    name, path = operation["op"], operation["path"]
    if name in ("move", "copy"):
        value = deepcopy(_find(document, operation["from"]))
        if name == "move":
            _remove(document, operation["from"])
        _put(document, path, value, replace=False)
    elif name == "remove":
        _remove(document, path)
    elif name in ("add", "replace"):
        _put(document, path, operation["value"], replace=name == "replace")
    elif name == "test":
        if _find(document, path) != operation["value"]:
            raise ValueError(f"testing path {path} value failed")
    else:
        raise ValueError(f"unknown operation {name}")


def _steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError(f"bad path {path}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]


def _find(document: Any, path: str) -> Any:
    for step in _steps(path):
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _parent(document: Any, path: str) -> tuple[Any, str]:
    *above, last = _steps(path)
    for step in above:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document, last


def _remove(document: Any, path: str) -> None:
    parent, last = _parent(document, path)
    del parent[int(last) if isinstance(parent, list) else last]


def _put(document: Any, path: str, value: Any, *, replace: bool) -> None:
    parent, last = _parent(document, path)
    if isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if not 0 <= index <= len(parent):
            raise IndexError(f"{path}: index out of range")
        parent[index : index + 1 if replace else index] = [value]
    elif replace and last not in parent:
        raise KeyError(path)
    else:
        parent[last] = value
