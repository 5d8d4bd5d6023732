"""The types of a Kubernetes release, from the sources of its Python client. No client is imported.

A client's major version is the minor version of its Kubernetes: client 30 has the types of 1.30.
Each model has a table of its fields and one of their types; which fields are required is in the
checks of the setters up to client 36, and in the annotations from client 37 on.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

FOLDER = "kubernetes/client"
_REQUIRED = re.compile(r"Invalid value for `(\w+)`, must not be `None`")
_LIST = re.compile(r"(?i:list)\[(.+)\]")
_MAP = re.compile(r"(?i:dict)(?:\(|\[)str, (.+)[\])]")
_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str,),
}
ReadFile = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Model:
    """One type. `fields` are the types by the name of the field on the wire."""

    fields: Mapping[str, str]
    required: frozenset[str]


def wheel_reader(wheel: Path) -> ReadFile:
    """Return a function that reads a module of the client from a wheel."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())

    def read(name: str) -> str | None:
        path = f"{FOLDER}/{name}"
        return archive.read(path).decode() if path in names else None

    return read


def installed_reader() -> ReadFile:
    """Return a function that reads a module of the installed client."""
    folder = resources.files("kubernetes") / "client"

    def read(name: str) -> str | None:
        path = folder / name
        return path.read_text() if path.is_file() else None

    return read


class KubernetesTypes:
    """The types of one release."""

    def __init__(self, read: ReadFile) -> None:
        self._read = read
        self.model = cache(self._model)

    def _model(self, name: str) -> Model | None:
        """Return a model by its name, as `V1DaemonSet`; `None` if the release has none."""
        source = self._read(f"models/{_snake(name)}.py")
        return None if source is None else parse_model(source)

    def problems(self, item: Mapping[str, object]) -> Iterator[str]:
        """Yield what is wrong with an object: unknown and missing fields, values of other types."""
        group, _, version = str(item["apiVersion"]).rpartition("/")
        kind = str(item["kind"])
        model = f"{version.capitalize()}{kind}"
        if not self._serves(group, version, kind) or self.model(model) is None:
            yield f"{item['apiVersion']} {kind}: this release does not have it"
            return
        yield from self._check(model, item, kind)

    def _serves(self, group: str, version: str, kind: str) -> bool:
        module = (group.removesuffix(".k8s.io") or "core").replace(".", "_")
        source = self._read(f"api/{module}_{version}_api.py") or ""
        calls = (f"def create_{scope}{_snake(kind)}(" for scope in ("", "namespaced_"))
        return any(call in source for call in calls)

    def _check(self, declared: str, value: object, where: str) -> Iterator[str]:
        if one := _LIST.fullmatch(declared):
            if not isinstance(value, list):
                yield f"{where}: no list"
                return
            for index, element in enumerate(value):
                yield from self._check(one[1], element, f"{where}[{index}]")
        elif one := _MAP.fullmatch(declared):
            if not isinstance(value, dict):
                yield f"{where}: no map"
                return
            for key, element in value.items():
                yield from self._check(one[1], element, f"{where}.{key}")
        elif declared in _SCALARS:
            wrong = isinstance(value, bool) and declared != "bool"
            if wrong or not isinstance(value, _SCALARS[declared]):
                yield f"{where}: {value!r} is no {declared}"
        elif declared != "object":
            yield from self._check_model(declared, value, where)

    def _check_model(self, declared: str, value: object, where: str) -> Iterator[str]:
        model = self.model(declared)
        if model is None or not isinstance(value, dict):
            yield f"{where}: no {declared}"
            return
        for key in value.keys() - model.fields.keys():
            yield f"{where}.{key}: unknown field"
        for key in model.required - value.keys():
            yield f"{where}.{key}: missing"
        for key in value.keys() & model.fields.keys():
            yield from self._check(model.fields[key], value[key], f"{where}.{key}")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def parse_model(source: str) -> Model:
    """Return the model that a module of the client defines."""
    (definition,) = (one for one in ast.parse(source).body if isinstance(one, ast.ClassDef))
    tables: dict[str, dict[str, str]] = {}
    annotations: dict[str, str] = {}
    for statement in definition.body:
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
            annotations[ast.unparse(target)] = ast.unparse(statement.annotation)
        else:
            continue
        name = ast.unparse(target)
        if name in ("openapi_types", "attribute_map") and statement.value is not None:
            tables[name] = ast.literal_eval(statement.value)
    wire, types = tables["attribute_map"], tables["openapi_types"]
    required = set(_REQUIRED.findall(source)) | {
        name
        for name, annotation in annotations.items()
        if name in wire and not annotation.startswith("Optional[")
    }
    return Model(
        fields={wire[name]: declared for name, declared in types.items()},
        required=frozenset(wire[name] for name in required if name in wire),
    )
