"""Runs a module as `python -m` does, but without the current folder on the path: `python start.py MODULE ARGUMENTS`.

What lies in that folder may have the name of a module of the standard library, such as an operator's operator.py.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the folder of this file
del sys.argv[0]

import runpy  # noqa: E402

runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
