"""The kubelet of this node, asked in turn; and its pod-resources served with our grants."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator

from agent.daemon.cluster.known import Known
from agent.kube.session.credentials import Credentials
from agent.kubelet.client import KubeletClient
from agent.kubelet.facts import FactsSource
from agent.kubelet.poller import KubeletPoller
from agent.kubelet.resources.channel import PodResourcesChannel, kubelet_socket
from agent.kubelet.resources.proxy import PodResourcesProxy
from agent.model.cluster.facts import NodeFacts
from agent.node.parts import Parts

Work = Callable[[], Coroutine[object, object, None]]


class KubeletSide:
    """Puts together what talks to the kubelet. Belongs to the loop thread."""

    def __init__(self, parts: Parts, credentials: Credentials, known: Known) -> None:
        self._parts = parts
        settings = parts.settings.kubelet
        self._client = KubeletClient(settings, credentials, self._node, parts.clock)
        files = parts.opened.files
        facts = FactsSource(
            self._client,
            parts.clock,
            lambda: parts.store.current.cpus.value,
            files,
            settings.root_dir,
        )
        self.poller = KubeletPoller(
            self._client,
            parts.clock,
            settings,
            facts=facts,
            on_pods=known.kubelet_pods,
            on_facts=known.kubelet_facts,
        )
        self._unnamed: frozenset[str] = frozenset()
        self.proxy: PodResourcesProxy | None = None
        self._channel: PodResourcesChannel | None = None
        if settings.pod_resources_proxy:
            self._channel = PodResourcesChannel(kubelet_socket(settings.root_dir))
            folder = settings.pod_resources_proxy_dir
            self.proxy = PodResourcesProxy(
                folder,
                self._channel,
                parts.known_pods,
                held=lambda: parts.store.current.served.value.held,
            )

    def work(self) -> Iterator[tuple[str, Work]]:
        """Return what begins each thing that runs for ever, by name."""
        yield "kubelet", self.poller.run
        if self.proxy is not None:
            yield "pod-resources proxy", self.proxy.run

    def look_at_pods(self) -> None:
        """Ask the kubelet at once when a pod is here that neither source of pods lists."""
        now = self._parts.store.current
        listed = {pod.uid for pod in now.cluster.pods}
        sandboxes = now.runtime.value.sandboxes.values()
        unnamed = frozenset(
            (
                *(pod.uid for pod in now.pods.value if not pod.name),
                *(box.uid for box in sandboxes if not box.stopped and box.uid not in listed),
            )
        )
        if unnamed - self._unnamed:
            self.poller.poke()
        self._unnamed = unnamed

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        if self._channel is not None:
            await self._channel.close()

    def _node(self) -> NodeFacts | None:
        return self._parts.store.current.cluster.node.value
