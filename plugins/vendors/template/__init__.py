"""A vendor to copy: every method with the smallest honest answer. `docs/new-vendor.md` leads on.

`python -m plugins.new NAME` copies it under another name. Here is the vendor `template`: what the
agent loads is in `vendor.py`, what its worker process loads in `session.py`.
"""
