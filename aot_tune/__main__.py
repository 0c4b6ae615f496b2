"""`python -m aot_tune` is the command `aot-tune`."""

from __future__ import annotations

import sys

from aot_tune.cli.main import main

sys.exit(main())
