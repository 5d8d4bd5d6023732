"""The whole story in one terminal, without a cluster: `make demo-cluster`.

Real parts: three agents and xpu-scheduler, each a process of its own. Strict fakes: the API server
(`tests.apiserver`), which `kubectl` can use, and kube-scheduler (`tests.kubescheduler`). The agents
run on recorded hosts of three makers. A thread plays the kubelets: it lets bound pods run and end.
On the first node a card fails again and again: the copy of its recording has events for that.
"""
