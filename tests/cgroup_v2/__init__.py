"""Version 2 control groups without a kernel, and the session that a kernel answered as a check."""
