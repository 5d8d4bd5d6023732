"""Device pipelines for tests."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

from agent.app.context import AppContext
from agent.app.events import EventRecorder
from agent.app.pipeline import DevicePipeline, HealthUpdater, device_runners
from agent.app.publishing import PublishSink
from agent.devices.health_file import HealthFile
from agent.devices.published_minors import PublishedMinorStore
from agent.messages import MessageQueue
from agent.workers.manager import VendorManager


def build_pipeline(
    context: AppContext,
    sink: PublishSink,
    vendors: VendorManager | None = None,
    messages: MessageQueue | None = None,
    executor: Executor | None = None,
) -> DevicePipeline:
    """Return the pipeline of a context, whose health does not outlive it."""
    messages = messages or MessageQueue()
    vendors = vendors or VendorManager((), context.settings, context.clock, messages)
    minors = PublishedMinorStore()
    health = HealthUpdater(
        context.settings.health, context.store, context.clock, vendors, HealthFile("", "")
    )
    return DevicePipeline(
        health,
        messages,
        executor or ThreadPoolExecutor(1),
        context.clock,
        context.host_reader(minors),
        minors,
        device_runners(context, sink),
        EventRecorder(context.store, context.clock, sink.event_output(), messages),
    )
