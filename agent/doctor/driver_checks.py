"""Checks of drivers: module and library of one version, device nodes, daemons of the vendor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.doctor.check import (
    NO_DEVICE,
    PROCESSES_HIDDEN,
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.snapshot.vendor import NodeDaemon

_VERSION_AT_END = re.compile(r"\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)$")


def library_version(path: str) -> str:
    """Return the version at the end of a library's name; empty without one."""
    match = _VERSION_AT_END.search(path)
    return match[1] if match is not None else ""


def check_driver_versions(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel module and the library of each driver have one version."""
    for name, vendor in facts.vendors.items():
        if not vendor.requirements.library:
            continue
        check = f"driver-version:{name}"
        versions = {library_version(path) for path in vendor.libraries} - {""}
        if not vendor.module_version:
            yield skip(check, "the version of the kernel module cannot be read")
        elif not versions:
            yield skip(check, "no library with a version in its name is visible")
        elif vendor.module_version in versions:
            yield ok(check, f"module and library are {vendor.module_version}")
        else:
            yield fail(
                check,
                f"the kernel module is {vendor.module_version}, the library is "
                f"{join_names(sorted(versions))}",
                impact="each new process of the library fails (Driver/library version mismatch); "
                "running ones go on",
                remedy="drain the node and load the new module (xpu-agent release VENDOR, then "
                "rmmod and modprobe), or reboot",
            )


def check_driver_library(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether one version of each driver's library is installed."""
    for name, vendor in facts.vendors.items():
        if not vendor.requirements.library:
            continue
        check = f"driver-library:{name}"
        versions = sorted({library_version(path) for path in vendor.libraries} - {""})
        if not facts.is_live:
            yield skip(check, "recordings have no libraries")
        elif not versions:
            yield warn(
                check,
                f"no {vendor.requirements.library}VERSION in "
                f"{join_names(list(vendor.requirements.library_folders))}",
                impact="the vendor cannot be asked, and containers get no library by CDI",
                remedy="install the driver's libraries on the host; if a driver container has "
                f"them, set discovery.{name}.driver_root",
            )
        elif len(versions) > 1:
            yield warn(
                check,
                f"versions {join_names(versions)} are installed",
                impact="it depends on the linker's cache which one a process gets",
                remedy="remove the libraries of the old driver, and run ldconfig",
            )
        else:
            yield ok(check, f"{vendor.libraries[0]}")


def check_device_nodes(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the nodes exist that every container with a device needs."""
    for name, vendor in facts.vendors.items():
        wanted = vendor.requirements.device_nodes
        if not wanted:
            continue
        check = f"device-nodes:{name}"
        own = [
            node.path
            for device in facts.snapshot.devices.value.devices
            if facts.node.vendor_names.get(device.key) == name and device.info.managed
            for node in device.info.nodes
        ]
        missing = [path for path in wanted if path not in vendor.nodes]
        if not facts.is_live and missing:
            yield skip(check, f"the recording has no {missing[0]}")
        elif missing:
            yield fail(
                check,
                f"{join_names(missing)} not there",
                impact="containers with a device of this vendor are refused, or cannot use it",
                remedy="load all modules of the driver (nvidia-modprobe -u for nvidia-uvm), and "
                "let udev make the nodes",
            )
        else:
            yield ok(check, f"{len(wanted) + len(own)} nodes")


def check_char_links(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether systemd finds the device nodes that it has to allow after a reload."""
    if not facts.is_live:
        yield skip("char-links", RECORDED)
        return
    if facts.cgroup_driver != "systemd" or not facts.char_links:
        return
    missing = sorted(path for path, there in facts.char_links.items() if not there)
    if not missing:
        yield ok("char-links", f"{len(facts.char_links)} nodes have their links")
        return
    yield fail(
        "char-links",
        f"no link in /dev/char for {', '.join(missing[:4])}",
        impact="a systemd daemon-reload takes these devices away from running containers "
        "(Failed to initialize NVML: Unknown Error)",
        remedy="nvidia-ctk system create-dev-char-symlinks --create-all",
    )


def check_persistence(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the driver keeps idle cards initialised."""
    yield from _daemon_results(facts, "persistence", by_fact=True)


def check_daemons(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the programs run that hardware beside the devices needs."""
    yield from _daemon_results(facts, "fabric-daemons", by_fact=False)


def _daemon_results(facts: CheckInputs, check: str, *, by_fact: bool) -> Iterator[CheckResult]:
    for name, vendor in facts.vendors.items():
        for daemon in vendor.requirements.daemons:
            if (daemon.fact is not None) is not by_fact:
                continue
            label = f"{check}:{name}"
            reason = _need(facts, name, daemon)
            if by_fact and not _is_reported(facts, name, daemon):
                yield skip(label, "the driver does not report it")
            elif not reason:
                yield ok(label, f"{daemon.process} is not needed here")
            elif not by_fact and not facts.is_live:
                yield skip(label, f"{reason}; {RECORDED}")
            elif not by_fact and facts.processes is None:
                yield skip(label, f"{reason}; {PROCESSES_HIDDEN}")
            elif not by_fact and facts.runs(daemon.process) is not None:
                yield ok(label, f"{reason}; {daemon.process} runs")
            else:
                runs = facts.processes is None or facts.runs(daemon.process) is not None
                text = reason if runs else f"{reason}, and {daemon.process} does not run"
                yield warn(label, text, impact=daemon.impact, remedy=daemon.remedy)


def _is_reported(facts: CheckInputs, vendor: str, daemon: NodeDaemon) -> bool:
    """Return whether a device of the vendor has the fact that a daemon depends on."""
    names = facts.node.vendor_names
    return any(
        daemon.fact is not None and daemon.fact[0] in dict(device.facts)
        for device in facts.node.devices.values()
        if names.get(device.key) == vendor
    )


def _need(facts: CheckInputs, vendor: str, daemon: NodeDaemon) -> str:
    """Return what needs a daemon; empty if nothing does."""
    if daemon.function and daemon.function in facts.vendors[vendor].functions:
        return f"PCI functions {daemon.function} are here"
    if daemon.fact is None:
        return ""
    names = facts.node.vendor_names
    keys = [
        device.key
        for device in facts.node.devices.values()
        if names.get(device.key) == vendor and daemon.fact in device.facts
    ]
    return f"{' is '.join(daemon.fact)} for {join_names(keys)}" if keys else ""


CHECKS = (
    Check(
        id="driver-version",
        group=CheckGroup.DRIVERS,
        question="Have kernel module and library of a driver one version?",
        run=check_driver_versions,
        absence=f"{NO_DEVICE} whose library has a version in its name",
    ),
    Check(
        id="driver-library",
        group=CheckGroup.DRIVERS,
        question="Is one version of the driver's library installed?",
        run=check_driver_library,
        absence=f"{NO_DEVICE} whose library has a version in its name",
    ),
    Check(
        id="device-nodes",
        group=CheckGroup.DRIVERS,
        question="Do the device nodes exist that every container with a device needs?",
        run=check_device_nodes,
        absence=NO_DEVICE,
    ),
    Check(
        id="char-links",
        group=CheckGroup.DRIVERS,
        question="Does systemd find the device nodes after a reload?",
        run=check_char_links,
        absence="no such device nodes, or the cgroup driver is not systemd",
    ),
    Check(
        id="persistence",
        group=CheckGroup.DRIVERS,
        question="Does the driver keep idle cards initialised?",
        run=check_persistence,
        absence="no vendor here has such a daemon",
    ),
    Check(
        id="fabric-daemons",
        group=CheckGroup.DRIVERS,
        question="Does the fabric manager run where there are switches?",
        run=check_daemons,
        absence="no vendor here has such a daemon",
    ),
)
