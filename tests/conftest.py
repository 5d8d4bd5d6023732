"""What every test shares: how property tests look for examples; how many files they may open."""

from __future__ import annotations

import os
import resource

from hypothesis import settings

# no property is judged by the speed of a busy machine
settings.register_profile("explore", deadline=None)
# a build tells whether the change is good; new examples are looked for on developers' machines
settings.register_profile("build", deadline=None, derandomize=True)
settings.load_profile("build" if os.environ.get("CI") else "explore")

# groups that tests measure stay open: more files than the limit that a shell starts with
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
