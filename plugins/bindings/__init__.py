"""The edges to the vendors' libraries: loading, calls, structures, errors. One package each."""
