"""Imports what is not installed."""

import package_not_there  # noqa: F401
