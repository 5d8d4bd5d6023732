"""Settings of the extender: a YAML file in which unknown keys are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta

from agent.errors import BadConfig
from agent.wire_formats.plain_yaml import decode_settings_yaml
from agent.wire_formats.quantities import parse_quantity
from plugins.scheduler.devices.allocator import Rules
from plugins.scheduler.devices.requests import SHARED_TEMPLATES, SharedTemplates
from plugins.scheduler.devices.scores import DEFAULT_WEIGHTS, ScoringStrategy
from plugins.scheduler.load.load_settings import (
    FitPlusSettings,
    LoadScoreSettings,
    ScarceResourcesSettings,
    Weight,
)

MAX_FILE_BYTES = 1 << 20


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates of the server; with `client_ca_file`, clients need one of that authority.

    The files are read again when they change.
    """

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    # names of which a client's certificate must have one: a DNS name, address, e-mail or URI of its
    # alternative names, or CN=NAME; empty: any that the authority signed
    client_names: list[str] = []
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class LeaderElectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Lease that replicas share."""

    enabled: bool = True
    namespace: str = "kube-system"
    name: str = "xpu-scheduler"


class ScoringSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether idle or full devices and nodes are preferred, and the weight of each resource."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    weights: dict[str, Annotated[int, Meta(ge=0, le=1000)]] = msgspec.field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS)
    )


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of `xpu-scheduler run`."""

    listen: str = "0.0.0.0:8443"
    tls: TlsSettings = TlsSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    # Service without a selector whose only endpoint the leader becomes, in the namespace of the
    # lease; empty: none. Its address is the pod's, of the variable POD_IP
    service: str = ""
    scoring: ScoringSettings = ScoringSettings()
    # beside the scores below, that of the devices has this weight
    device_score_weight: Weight = 1
    load_score: LoadScoreSettings = LoadScoreSettings()
    fit_plus: FitPlusSettings = FitPlusSettings()
    scarce_resources: ScarceResourcesSettings = ScarceResourcesSettings()
    # write sums of devices into Nodes; off where koord-manager does it
    publish_node_resources: bool = False
    publish_gpu_shared: bool = False  # `koordinator.sh/gpu.shared`, too
    upstream_compatible: bool = False  # choose devices as Koordinator does, defects included
    enforce_exclusive_policy: bool = False
    require_device_object: bool = True
    align_devices: bool = True  # to the NUMA nodes of CPU and memory, where a policy asks for them
    # models whose cards no two pods share, as `VENDOR/MODEL` of the labels of Nodes
    unshared_models: list[Annotated[str, Meta(pattern="^[^/]+/[^/]+$")]] = []
    # templates of virtual NPUs by `VENDOR-MODEL` and name, beside those that are built in; the form
    # is that of Koordinator's ConfigMap `gpu-shared-resource-templates`
    shared_templates: dict[str, dict[str, dict[str, str | int]]] = {}
    # mark the Device object before each binding, so that a replica that wrongly takes itself for
    # the leader gives no devices twice: one more write for each pod, and the right to patch devices
    strict_ledger: bool = False
    # write what vendors' own device plug-ins read, where the agent does not serve the kubelet;
    # needs the rights to patch pods and nodes
    vendor_annotations: bool = False
    events: bool = True  # Kubernetes events of the extender's own
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def rules(self) -> Rules:
        """Return the rules of the allocation."""
        return Rules(
            upstream_compatible=self.upstream_compatible,
            enforces_exclusive_policy=self.enforce_exclusive_policy,
            requires_device_object=self.require_device_object,
            aligns_devices=self.align_devices,
            serves_vendor_plugins=self.vendor_annotations,
            unshared_models=frozenset(
                (vendor, model)
                for vendor, _, model in (model.partition("/") for model in self.unshared_models)
            ),
            templates={**SHARED_TEMPLATES, **_templates(self.shared_templates)},
        )

    @property
    def has_load_scores(self) -> bool:
        """Return whether any of the scores by load or requests is on."""
        scores = (self.load_score, self.fit_plus, self.scarce_resources)
        return any(score.enabled for score in scores)

    def strategy(self) -> ScoringStrategy:
        """Return the scoring strategy."""
        return ScoringStrategy(type=self.scoring.type, weights=self.scoring.weights)


DEFAULT_SETTINGS = SchedulerSettings()


def _templates(texts: Mapping[str, Mapping[str, Mapping[str, str | int]]]) -> SharedTemplates:
    """Return templates with amounts in base units; raise `BadConfig`."""
    templates: dict[str, dict[str, dict[str, int]]] = {}
    for model, of_model in texts.items():
        for template, resources in of_model.items():
            for resource, text in resources.items():
                quantity = parse_quantity(str(text))
                if quantity is None or quantity.value <= 0:
                    raise BadConfig(
                        f"shared_templates.{model}.{template}.{resource}: {text!r} is no amount"
                    )
                of_template = templates.setdefault(model, {}).setdefault(template, {})
                of_template[resource] = quantity.value
    return templates


def load_settings(path: str) -> SchedulerSettings:
    """Return the settings of a file; raise `BadConfig` that names the key."""
    if not path:
        return SchedulerSettings()
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        remedy = "name a settings file that this user can read"
        raise BadConfig(f"{path}: {error.strerror}; {remedy}") from error
    if len(data) > MAX_FILE_BYTES:
        raise BadConfig(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    loaded = decode_settings_yaml(data, path)
    try:
        settings = msgspec.convert({} if loaded is None else loaded, SchedulerSettings)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {error}") from error
    try:
        _templates(settings.shared_templates)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from error
    if settings.strict_ledger and not settings.leader_election.enabled:
        raise BadConfig(f"{path}: strict_ledger: needs leader_election.enabled")
    return settings


# resources that make kube-scheduler call the extender; whether it counts them itself: it must not
# count those that some nodes do not advertise
_MANAGED_RESOURCES = (
    ("koordinator.sh/gpu-core", False),
    ("koordinator.sh/gpu-memory", False),
    ("koordinator.sh/gpu-memory-ratio", False),
    ("koordinator.sh/gpu", True),
    ("koordinator.sh/gpu.shared", True),
    ("koordinator.sh/rdma", False),
    ("koordinator.sh/fpga", True),
    ("huawei.com/npu-core", False),
    ("huawei.com/npu-cpu", False),
    ("huawei.com/npu-dvpp", False),
    ("nvidia.com/gpu", False),
)


MAX_PORT = 65535
_URL = re.compile(
    r"(?P<scheme>https?)://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?:/[!-~]*)?"
)


def scheduler_configuration(url: str) -> str:
    """Return the KubeSchedulerConfiguration that attaches an extender at a URL.

    All nodes are offered (`percentageOfNodesToScore`): kube-scheduler otherwise stops looking
    before it has seen the nodes with free devices. Raises `BadConfig` if the URL is none.
    """
    parts = _URL.fullmatch(url)
    if parts is None or int(parts["port"] or 1) > MAX_PORT:
        raise BadConfig(
            f"--url: {url[:80]!r} is no URL, as https://xpu-scheduler.kube-system.svc is"
        )
    is_https = parts["scheme"] == "https"
    extender: dict[str, object] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 10,
        "enableHTTPS": is_https,
    }
    if is_https:
        folder = "/etc/xpu-scheduler"
        extender["tlsConfig"] = {
            "caFile": f"{folder}/ca.crt",
            "certFile": f"{folder}/tls.crt",
            "keyFile": f"{folder}/tls.key",
        }
    extender |= {
        "httpTimeout": "30s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": name, "ignoredByScheduler": is_ignored}
            for name, is_ignored in _MANAGED_RESOURCES
        ],
    }
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler", "percentageOfNodesToScore": 100}],
        "extenders": [extender],
    }
    return yaml.safe_dump(document, sort_keys=False)
