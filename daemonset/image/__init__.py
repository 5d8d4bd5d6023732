"""Assembles the root file systems of the images; `daemonset/Dockerfile` and the tests use it.

    python -m daemonset.image --out FOLDER

It needs pip and the setuptools of `requirements-build.lock`, and Debian's package data for the
licences; it uses the interpreter that runs it. The folders below FOLDER are the layers:

| folder | content |
| --- | --- |
| `runtime` | the interpreter, its standard library, shared C libraries |
| `agent-libraries` | the distributions of `requirements.lock` |
| `scheduler-libraries` | those of them that the scheduler needs |
| `agent`, `scheduler` | the project itself, its command, and the bill of materials |

There is no shell, package manager or compiler in any of them. Equal input gives equal folders.
"""
