"""A strict kube-scheduler, as far as its HTTP extenders can tell (kube-scheduler 1.35.6).

`KubeScheduler` takes pods through its own filters, the extenders' `filter` and `prioritize` one at
a time, and binds in parallel. It sends what kube-scheduler sends, and does with an answer what
kube-scheduler does: nothing is retried inside a call, every status but 200 is an error, a node that
was not offered is one, priorities that cannot be read are dropped without a word, and nobody checks
whether a `bind` that succeeded has bound.

Not here: redirects, gzip, taints, affinity beyond the node selector, and the wake-up of refused
pods by anything but a pod that is bound or deleted.
"""

from tests.kubescheduler.configuration import BadSchedulerConfig, ExtenderConfig, read_extenders
from tests.kubescheduler.extender import ExtenderFailed, HttpExtender
from tests.kubescheduler.scheduler import KubeScheduler, SchedulingEvent

__all__ = [
    "BadSchedulerConfig",
    "ExtenderConfig",
    "ExtenderFailed",
    "HttpExtender",
    "KubeScheduler",
    "SchedulingEvent",
    "read_extenders",
]
