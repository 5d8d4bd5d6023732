"""Settings from the options of a command; imports only what every start needs."""

from __future__ import annotations

import argparse
import os

from agent.config.settings import Settings
from agent.config.sources import LoadedSettings, choose_file, load_settings
from agent.errors import BadConfig
from agent.kubelet.pod_list_file import PodListFile
from agent.workers.load import vendor_descriptions


def command_settings(arguments: argparse.Namespace) -> Settings:
    """Load the settings with the flags of this command on top; raise `BadConfig`."""
    return command_settings_with_origins(arguments).settings


def command_settings_with_origins(arguments: argparse.Namespace) -> LoadedSettings:
    """Load the settings as `command_settings`, with the origin of each; raises `BadConfig`."""
    flags: dict[str, tuple[str, object]] = {}
    if getattr(arguments, "node_name", None):
        flags["node.name"] = ("--node-name", arguments.node_name)
    if getattr(arguments, "listen", None):
        flags["metrics.listen"] = ("--listen", arguments.listen)
    if getattr(arguments, "kubeconfig", None):
        flags["api.kubeconfig"] = ("--kubeconfig", arguments.kubeconfig)
    return load_settings(choose_file(arguments.config), os.environ, flags, vendor_descriptions())


def pod_list_file(arguments: argparse.Namespace) -> PodListFile | None:
    """Return the file of `--pods`, read once; `None` without the option. Raises `BadConfig`."""
    if not getattr(arguments, "pods", None) or arguments.pods is True:
        return None
    pods = PodListFile(arguments.pods)
    pods.read()
    if pods.error:
        raise BadConfig(f"--pods {pods.error}; name a kubelet's PodList in JSON or YAML")
    return pods
