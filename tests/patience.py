"""How long a test waits for what has to come.

It is no judgement of speed: whoever waits that long waits for something that will never come,
however busy the machine is.
"""

PATIENCE_S = 300.0
