"""A vendor to copy, with the smallest correct answer of each method; see `docs/new-vendor.md`."""
