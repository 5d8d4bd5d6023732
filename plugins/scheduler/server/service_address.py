"""The leader's address in the EndpointSlice of the Service, so that calls reach the leader alone.

The Service has no selector: both replicas are ready, as a PodDisruptionBudget needs them to be, but
only the leader answers.
"""

from __future__ import annotations

import ipaddress
import logging

from agent.errors import BadConfig
from agent.kube.api import ApiClient, ApiResource, ObjectRequests
from agent.kube.errors import ApiError
from agent.wire_formats.json_values import JsonDict

log = logging.getLogger(__name__)

SLICES = ApiResource(
    group="discovery.k8s.io",
    version="v1",
    plural="endpointslices",
    kind="EndpointSlice",
    namespaced=True,
)
PORT_NAME = "extender"
MANAGED_BY = "xpu-scheduler"


class ServiceAddress:
    """One EndpointSlice with one address."""

    def __init__(
        self, api: ApiClient, namespace: str, service: str, address: str, port: int
    ) -> None:
        """`address` is the pod's own; raises `BadConfig` if it is invalid."""
        try:
            self._version = ipaddress.ip_address(address).version
        except ValueError as error:
            raise BadConfig(f"POD_IP: {address!r} is no address") from error
        self._api = api
        self._namespace = namespace
        self._service = service
        self._address = address
        self._port = port

    async def publish(self) -> bool:
        """Make this replica the Service's only endpoint; return whether that is stored."""
        requests = ObjectRequests(resource=SLICES, name=self._service, namespace=self._namespace)
        try:
            await self._api.call(requests.apply(self.body(), force=True))
        except ApiError as error:
            log.error("service_address_not_written", extra={"error": str(error)})
            return False
        return True

    def body(self) -> JsonDict:
        """Return the EndpointSlice."""
        return {
            "apiVersion": SLICES.api_version,
            "kind": SLICES.kind,
            "metadata": {
                "name": self._service,
                "namespace": self._namespace,
                "labels": {
                    "kubernetes.io/service-name": self._service,
                    "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
                },
            },
            "addressType": f"IPv{self._version}",
            "endpoints": [{"addresses": [self._address], "conditions": {"ready": True}}],
            "ports": [{"name": PORT_NAME, "port": self._port, "protocol": "TCP"}],
        }
