"""What every test shares: how property tests look for examples."""

from __future__ import annotations

import os

from hypothesis import settings

# no property is judged by the speed of a busy machine
settings.register_profile("explore", deadline=None)
# a build tells whether the change is good; new examples are looked for on developers' machines
settings.register_profile("build", deadline=None, derandomize=True)
settings.load_profile("build" if os.environ.get("CI") else "explore")
