"""A module that sets a variable of Triton and cannot be imported all the same."""

import os

os.environ["TRITON_F32_DEFAULT"] = "ieee"
raise RuntimeError("no device")
