"""From a command's options to settings; loads nothing that a start can do without."""

from __future__ import annotations

import argparse
import os

from agent.config.load import Loaded, chosen_file, load
from agent.config.sections import Settings


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Load the settings with the flags of this command on top; raise `BadConfig`."""
    return load_settings(arguments).settings


def load_settings(arguments: argparse.Namespace) -> Loaded:
    """Load the settings as `settings_of`, with the origin of each; raise `BadConfig`."""
    flags: dict[str, tuple[str, object]] = {}
    if getattr(arguments, "node_name", None):
        flags["node.name"] = ("--node-name", arguments.node_name)
    if getattr(arguments, "listen", None):
        flags["metrics.listen"] = ("--listen", arguments.listen)
    if getattr(arguments, "kubeconfig", None):
        flags["api.kubeconfig"] = ("--kubeconfig", arguments.kubeconfig)
    return load(chosen_file(arguments.config), os.environ, flags)
