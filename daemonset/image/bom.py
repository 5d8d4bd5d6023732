"""The bill of materials of an image: CycloneDX 1.6, made of what was installed."""

from __future__ import annotations

import hashlib
import json
import platform
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from pathlib import Path

from daemonset.image.debian import Package
from daemonset.image.distributions import Wheel, normalize_name

SPECIFICATION = "1.6"
FILE = Path("usr/share/xpu-agent/bom.cdx.json")
# of `License` and of classifiers, where a distribution has no License-Expression
SPDX = {
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "mit license": "MIT",
    "mit": "MIT",
    "lgpl-2.1-or-later": "LGPL-2.1-or-later",
}
Component = dict[str, object]


@dataclass(frozen=True)
class Distribution:
    """The metadata of an installed distribution."""

    name: str
    version: str
    requires: tuple[str, ...]
    license: str  # an SPDX expression, or what the author wrote

    @property
    def purl(self) -> str:
        """Return its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def read_distributions(site: Path) -> tuple[Distribution, ...]:
    """Return what is installed in a folder, by its metadata."""
    texts = (path.read_text("utf-8", "replace") for path in site.glob("*.dist-info/METADATA"))
    distributions = (_distribution(message_from_string(text)) for text in texts)
    return tuple(sorted(distributions, key=lambda one: one.name))


def _distribution(metadata: Message) -> Distribution:
    requires = metadata.get_all("Requires-Dist") or []
    return Distribution(
        name=normalize_name(str(metadata["Name"])),
        version=str(metadata["Version"]),
        requires=tuple(str(text) for text in requires),
        license=_license(metadata),
    )


def _license(metadata: Message) -> str:
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = (str(text) for text in metadata.get_all("Classifier") or [])
    names = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    written = str(metadata["License"] or "").splitlines()
    for name in (*written[:1], *names):
        if name.strip().lower() in SPDX:
            return SPDX[name.strip().lower()]
    return next((name for name in (*written[:1], *names) if name.strip()), "")


def render_bom(
    target: str,
    base: str,
    distributions: Iterable[Distribution],
    wheels: Mapping[str, Wheel],
    interpreter: Mapping[str, str],
    packages: Mapping[Package, Mapping[str, str]],
) -> str:
    """Return the document.

    `interpreter` are the digests of files of the interpreter that no package owns, `packages` those
    of each package, by their paths in the image; `base` is the image of the build stage.
    """
    parts = tuple(distributions)
    project = next(part for part in parts if part.name == "xpu-node-agent")
    components = [_distribution_component(part, wheels) for part in parts if part is not project]
    components += [_package_component(*item) for item in packages.items()]
    if interpreter:
        components.append(_interpreter_component(interpreter))
    components.sort(key=lambda component: str(component["bom-ref"]))
    root = _distribution_component(project, wheels) | {"type": "container", "name": f"xpu-{target}"}
    properties = [{"name": "xpu-agent:build-image", "value": base}] if base else []
    document: dict[str, object] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {
            "component": root,
            **({"properties": properties} if properties else {}),
            "tools": {"components": [{"type": "application", "name": "daemonset.image"}]},
        },
        "components": components,
        "dependencies": [
            {
                "ref": root["bom-ref"],
                "dependsOn": [component["bom-ref"] for component in components],
            }
        ],
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    number = uuid.uuid5(uuid.NAMESPACE_URL, digest)
    document = {"serialNumber": f"urn:uuid:{number}", **document}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _distribution_component(part: Distribution, wheels: Mapping[str, Wheel]) -> Component:
    return {
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "hashes": [{"alg": "SHA-256", "content": wheels[part.name].sha256}],
        "licenses": _licenses((part.license,)),
    }


def _package_component(package: Package, files: Mapping[str, str]) -> Component:
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "licenses": _licenses(package.licenses),
        "components": _files(package.purl, files),
    }


def _interpreter_component(files: Mapping[str, str]) -> Component:
    version = platform.python_version()
    return {
        "type": "platform",
        "bom-ref": f"pkg:generic/python@{version}",
        "name": "python",
        "version": version,
        "purl": f"pkg:generic/python@{version}",
        "licenses": _licenses(("PSF-2.0",)),
        "components": _files(f"pkg:generic/python@{version}", files),
    }


def _files(owner: str, files: Mapping[str, str]) -> list[Component]:
    return [
        {
            "type": "file",
            "bom-ref": f"{owner}#{path}",
            "name": path,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for path, digest in sorted(files.items())
    ]


def _licenses(names: tuple[str, ...]) -> list[dict[str, object]]:
    """Return the licences; one expression, or names, as the schema allows no mixture."""
    known = [name for name in names if name]
    if len(known) == 1 and known[0] in _EXPRESSIONS:
        return [{"expression": known[0]}]
    return [{"license": {"name": name}} for name in known]


_EXPRESSIONS = {
    *SPDX.values(),
    *("Apache-2.0 OR BSD-3-Clause", "Apache-2.0 AND MIT", "PSF-2.0", "MIT AND Python-2.0"),
}
