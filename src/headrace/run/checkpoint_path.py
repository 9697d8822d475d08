"""The checkpoint folder of a run: checked, created, and made inaccessible to other users before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import QueryError
from headrace.state.checkpoint_folder import close_to_others
from headrace.support import ownership
from headrace.support.paths import given_path
from headrace.tools import plan_file

SPARK_FOLDER = "spark"  # folder of Spark's own checkpoint
STATE_FOLDER = "state"  # folder of blocks and manifests


def make_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint folder, created if necessary. Raise if the path contains anything else."""
    given = given_path(path, "the checkpoint")
    try:
        _refuse_other_content(given)
        folder = given.resolve()
        ownership.make_private_folder(folder)
    except OSError as error:
        raise QueryError(f"the checkpoint {str(given)!r} cannot be created: {error.strerror}") from None
    close_to_others(folder)
    close_to_others(folder / SPARK_FOLDER)
    return folder


def _refuse_other_content(folder: Path) -> None:
    if folder.is_symlink():
        raise QueryError(f"the checkpoint {str(folder)!r} is a symbolic link; give the folder itself")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the checkpoint {str(folder)!r} is a file; give a folder")
    if folder.is_dir() and (
        strange := {p.name for p in folder.iterdir()} - {SPARK_FOLDER, STATE_FOLDER, *plan_file.PLAN_NAMES}
    ):
        raise QueryError(
            f"the checkpoint {str(folder)!r} contains other files: {', '.join(sorted(strange))}; give an empty or new folder"
        )
