"""`python -m agent` is `xpu-agent`."""

import sys

from agent.cli.main import main

sys.exit(main())
