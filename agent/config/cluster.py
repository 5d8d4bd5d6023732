"""Settings of the API server, the kubelet and the writer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.snapshot.settings import SettingRule


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The connection to the API server, and the writing of objects."""

    kubeconfig: Annotated[
        str, SettingRule("kubeconfig file; empty: the pod's own account, else KUBECONFIG")
    ] = ""
    context: Annotated[str, SettingRule("its context; empty: its current one")] = ""
    deadline_s: Annotated[
        float, SettingRule("a write that takes longer is tried again", unit="s", low=1, high=60)
    ] = 10.0
    resync_s: Annotated[
        float,
        SettingRule(
            "interval of reading the agent's objects again, varied by a tenth",
            unit="s",
            low=10,
            high=3600,
        ),
    ] = 60.0
    takeover_s: Annotated[
        float,
        SettingRule(
            "fields of a writer that was silent that long are taken over; 0: never",
            unit="s",
            low=0,
            high=86400,
        ),
    ] = 300.0
    events: Annotated[bool, SettingRule("write Kubernetes events", maturity="beta")] = True
    node_labels: Annotated[
        bool, SettingRule("label the Node with vendor, model and driver", maturity="alpha")
    ] = False
    node_condition: Annotated[
        bool,
        SettingRule(
            "keep the conditions AcceleratorsHealthy, DeviceInjectionReady and EnforcementHealthy "
            "of the Node, and one for each class of faults of its devices",
            maturity="alpha",
        ),
    ] = False
    slo_stale_s: Annotated[
        float,
        SettingRule("a NodeSLO not confirmed that long is frozen", unit="s", low=60, high=86400),
    ] = 1800.0


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The connection to the kubelet of this node."""

    enabled: Annotated[
        bool, SettingRule("read pods and settings of the kubelet", maturity="beta")
    ] = True
    address_type: Annotated[
        str,
        SettingRule(
            "which of the Node's addresses", choices=("InternalIP", "Hostname", "ExternalIP")
        ),
    ] = "InternalIP"
    address: Annotated[str, SettingRule("its address; empty: the Node's of that type")] = ""
    port: Annotated[int, SettingRule("its port; 0: the Node's", low=0, high=65535)] = 0
    read_only_port: Annotated[
        int,
        SettingRule(
            "read-only port without TLS, which has no settings; 0: not used", low=0, high=65535
        ),
    ] = 0
    ca_file: Annotated[
        str, SettingRule("CA of its certificate; empty: not checked, it is self-signed by default")
    ] = ""
    interval_s: Annotated[float, SettingRule("interval of its pods", unit="s", low=1, high=300)] = (
        10.0
    )
    timeout_s: Annotated[float, SettingRule("deadline of one poll", unit="s", low=0.5, high=60)] = (
        3.0
    )
    root_dir: Annotated[str, SettingRule("its folder on this host")] = "/var/lib/kubelet"
    cgroup_root: Annotated[
        str, SettingRule("its --cgroup-root; empty: of its own settings, else searched for")
    ] = ""
    pod_resources_proxy: Annotated[
        bool,
        SettingRule("serve its pod-resources with the device allocations added", maturity="alpha"),
    ] = False
    pod_resources_proxy_dir: Annotated[str, SettingRule("folder of that socket")] = (
        "/var/run/koordlet/pod-resources"
    )
