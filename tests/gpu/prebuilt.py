"""Builds the library of test_triton.py where there is no GPU, to be tried on a card: `python prebuilt.py FOLDER`.

Everything is compiled by the Triton that is found first here, for `cuda-sm_90a`, by replay of a record whose times are
made up. On the card, AOT_TUNE_GPU_TEST_PREBUILT=FOLDER makes the tests take what is in the folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cuda_project import build
from triton_record import copy_templates, write_record

from aot_tune.compile import toolchain_for

TARGET = "cuda-sm_90a"


def main(folder: Path) -> None:
    """Build, and put what the tests need into the folder."""
    folder.mkdir(parents=True)
    templates = copy_templates(folder)
    with tempfile.TemporaryDirectory() as scratch:
        write_record(templates, Path(scratch) / "tuning", TARGET)
        made = build(
            Path(scratch) / "project",
            templates=(templates,),
            operators=("rms_norm", "swiglu"),
            database=Path(scratch) / "tuning",
            MODE="replay",
            STRICT="1",
        )
        for path in (made.library, made.module, made.folder / "aot_tune" / "my_ops" / "manifest.json"):
            shutil.copy(path, folder)
    print(f"{folder}: kernels compiled by Triton {toolchain_for('triton').identity()['version']} for {TARGET}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
