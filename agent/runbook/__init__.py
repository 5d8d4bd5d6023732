"""The runbook: each reason that the agent reports, what it means and what a person does about it.

Pure. `entry` has the types, `entries` the agent's own entries, `runbook` finds the entry of a
reason, and `problems` lists what is wrong on a node.
"""
