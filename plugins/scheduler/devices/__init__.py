"""Which devices of one node a pod gets: pure functions of requests, devices and usage."""
