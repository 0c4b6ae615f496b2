"""numpy as references use it, with products that are rounded to a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from rows_on_host import decode, encode


class RoundedProducts:
    """numpy, whose products are rounded to a dtype and then wide again."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def matmul(self, a: Any, b: Any) -> Any:
        """The product of two matrices."""
        return decode(encode(np.matmul(a, b), self._dtype), self._dtype)
