"""Installed as the `__main__.py` of a package: tells where programs find its library."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Print where the library is installed.")
folders = parser.add_mutually_exclusive_group(required=True)
for name, text in (
    ("cmake", "folder for CMake's <package>_DIR"),
    ("include", "folder of the C and C++ headers"),
    ("lib", "folder of the library"),
):
    folders.add_argument(f"--{name}-dir", action="store_const", const=name, dest="folder", help=text)
print(Path(__file__).resolve().parent / parser.parse_args().folder)
