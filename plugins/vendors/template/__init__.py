"""A vendor to copy: every method with the smallest honest answer. It is not shipped as one.

To add a vendor:

1. Copy this folder to `plugins/vendors/<name>/` and rename the two classes.
2. Add its name and class to `BUILTIN` in `plugins/vendors/__init__.py`. A package of your own
   needs no change here: it declares an entry point of the group `xpu_node_agent.vendors`.
3. Put every call of the vendor's library into one module, `library.py`, which turns the
   library's errors into those of `agent.errors`. Nothing else imports the library, and nothing
   that `vendor.py` imports at its top does.
4. Record a machine and its answers; the contract tests then hold your vendor to its promises.
"""
