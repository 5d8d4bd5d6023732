"""The `extenders` of a KubeSchedulerConfiguration, refused for what kube-scheduler exits with."""

from __future__ import annotations

import re

import msgspec
import yaml

DURATION = re.compile(r"(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+)ms)?")
DEFAULT_TIMEOUT_S = 5.0


class BadSchedulerConfig(Exception):
    """kube-scheduler would not start."""


class ManagedResource(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A resource whose pods the extender is called for."""

    name: str
    ignored_by_scheduler: bool = False


class TlsConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Files of certificates."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class ExtenderConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One entry of `extenders`."""

    url_prefix: str = ""
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 0
    enable_https: bool = msgspec.field(name="enableHTTPS", default=False)
    tls_config: TlsConfig | None = None
    http_timeout: str = ""
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False

    @property
    def timeout_s(self) -> float:
        """Return the limit of one call."""
        match = DURATION.fullmatch(self.http_timeout)
        if match is None or not self.http_timeout:
            return DEFAULT_TIMEOUT_S
        parts = {name: float(text or 0) for name, text in match.groupdict().items()}
        return parts["minutes"] * 60 + parts["seconds"] + parts["ms"] / 1000

    @property
    def ignored_resources(self) -> frozenset[str]:
        """Return the resources that kube-scheduler does not count itself."""
        return frozenset(
            managed_resource.name
            for managed_resource in self.managed_resources
            if managed_resource.ignored_by_scheduler
        )


def read_extenders(text: str) -> tuple[ExtenderConfig, ...]:
    """Return the extenders of a configuration; raise `BadSchedulerConfig`."""
    document = yaml.safe_load(text)
    try:
        extenders = msgspec.convert(document.get("extenders", []), tuple[ExtenderConfig, ...])
    except msgspec.ValidationError as error:
        raise BadSchedulerConfig(f"strict decoding error: {error}") from error
    check(extenders)
    return extenders


def check(extenders: tuple[ExtenderConfig, ...]) -> None:
    """Raise `BadSchedulerConfig` for what kube-scheduler's validation refuses."""
    binders = [extender for extender in extenders if extender.bind_verb]
    if len(binders) > 1:
        raise BadSchedulerConfig(
            f"found {len(binders)} extenders implementing bind: "
            "only one extender can implement bind"
        )
    names: set[str] = set()
    for index, one in enumerate(extenders):
        if one.prioritize_verb and one.weight <= 0:
            raise BadSchedulerConfig(
                f"extenders[{index}].weight: Invalid value: {one.weight}: "
                "must have a positive weight applied to it"
            )
        if one.http_timeout and DURATION.fullmatch(one.http_timeout) is None:
            raise BadSchedulerConfig(f"time: invalid duration {one.http_timeout!r}")
        for resource in one.managed_resources:
            prefix, slash, _ = resource.name.partition("/")
            if not slash or prefix.endswith("kubernetes.io"):
                raise BadSchedulerConfig(f"{resource.name} is an invalid extended resource name")
            if resource.name in names:
                raise BadSchedulerConfig(
                    f"duplicate extender managed resource name {resource.name}"
                )
            names.add(resource.name)
