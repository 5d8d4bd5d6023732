"""What every test shares: examples of property tests, files, and signals."""

from __future__ import annotations

import contextlib
import os
import resource
import signal

from hypothesis import settings

# no property is judged by the speed of a busy machine
settings.register_profile("explore", deadline=None)
# a build tells whether the change is good; new examples are looked for on developers' machines
settings.register_profile("build", deadline=None, derandomize=True)
settings.load_profile("build" if os.environ.get("CI") else "explore")

# groups that tests measure stay open: more files than the limit that a shell starts with
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))

# below `nohup` agents would inherit that hang-ups are ignored, as they should for their users
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# workers inherit what the shell left open; there the fake vendor would write into its pipes, too
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2:
        with contextlib.suppress(OSError):  # the list itself, which is closed by now
            os.set_inheritable(int(name), False)
