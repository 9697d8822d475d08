"""The Parquet sink of the tasks: they write files, and the driver publishes one folder per epoch as a whole.

    folder/_staging-<result>-<query>/<epoch>.<name>.part     a part, as its task wrote it; a receipt names it
    folder/_staging-<result>-<query>/epoch-.../part-...      an epoch that is being published; only the driver adds files
    folder/epoch-<epoch>-<result>-<query>/part-....parquet   published
    folder/_published-<result>-<query>                       the newest published epoch, and a hash of its receipts

A task writes a part under a unique name and syncs it before it returns the receipt. `publish` moves the parts that
count into a folder that no task knows, so that a superseded attempt cannot add to it, and renames that folder into
place. A crash may follow any step: the next `publish` finds each part at its old or new place. Readers may delete
published files, so a separate note records that they were published.

A staging folder belongs to one result of one query, so parts of other results in the same folder are never touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from headrace.errors import SinkError
from headrace.sinks.base import Part, Publication
from headrace.sinks.result_folders import (
    check_columns,
    check_same_rows,
    epoch_name,
    name_label,
    naming_folder,
    other_rows_error,
    rows_in,
    sync_folder,
    write_file,
)
from headrace.support import validators

_NAME = re.compile(r"[A-Za-z0-9-]{1,200}")
_STAGED = re.compile(r"([0-9]+)\.[A-Za-z0-9-]+\.part")
_GATHERED = re.compile(r"epoch-([0-9]+)-.*")
_RECEIPT = validators.record(
    folder=validators.text,
    name=validators.matching(_NAME, "the name of a part"),
    rows=validators.count,
    bytes=validators.count,
)


@dataclass(frozen=True)
class _PartReceipt:
    """A receipt: the part and the folder it was written to, which may differ from the sink's folder after a restart."""

    folder: str
    name: str
    rows: int
    bytes: int


class ParquetParts:
    """A sink whose parts are Parquet files that tasks write and the driver publishes."""

    def __init__(self, path: Path, ordered: bool = False) -> None:
        self.path = path.absolute()  # tasks may have another working directory
        self.ordered = ordered

    def demand_columns(self, columns: list[list[str]]) -> None:
        """Raise if existing files have other columns than the changed result."""
        check_columns(self.path, columns)

    # --- in a task -------------------------------------------------------------------------------------------------

    def write(self, part: Part) -> dict[str, Any]:
        with naming_folder(self.path):
            return self._write(part)

    def _write(self, part: Part) -> dict[str, Any]:
        staging = _staging(self.path, part.query, part.result)
        _make(staging)
        path = _staged(staging, part.epoch, part.name)
        try:
            write_file(part.table, path)
            for each in (staging, self.path):  # syncs the path to the part, which is the only copy of these results
                sync_folder(each)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return {"folder": str(self.path), "name": part.name, "rows": part.table.num_rows, "bytes": path.stat().st_size}

    # --- in the driver -----------------------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        with naming_folder(self.path):
            self._publish(publication)

    def _publish(self, publication: Publication) -> None:
        receipts = [_PartReceipt(**_RECEIPT(given, "the receipt")) for given in publication.receipts]
        if receipts:
            place = self._place(publication, receipts)
            if not _is_noted(place, publication, receipts):
                _publish(place, publication, receipts)
            _sweep(place, publication)
        _sweep(self.path, publication)

    def discard(self, query: str, result: str) -> None:
        shutil.rmtree(_staging(self.path, query, result), ignore_errors=True)

    def _place(self, publication: Publication, receipts: Sequence[_PartReceipt]) -> Path:
        """Return the sink's folder, or the folder where the parts were written if the sink's folder has changed since."""
        for place in (self.path, *(Path(receipt.folder) for receipt in receipts[:1])):
            if _is_noted(place, publication, receipts):
                return place
            staging = _staging(place, publication.query, publication.result)
            if (place / _name(publication)).exists() or (staging / _name(publication)).exists():
                return place
            if any(_staged(staging, publication.epoch, receipt.name).exists() for receipt in receipts):
                return place
        msg = (
            f"the parts of epoch {publication.epoch} are neither in {str(self.path)!r} nor in the folder where they were written,"
            f" {receipts[0].folder!r}; restore that folder, and make sure that driver and tasks share it"
        )
        raise SinkError(msg)

    def __repr__(self) -> str:
        return f"parquet({str(self.path)!r}, parts=True{', ordered=True' if self.ordered else ''})"


def _make(folder: Path) -> None:
    missing = [path for path in folder.parents if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def _publish(place: Path, publication: Publication, receipts: Sequence[_PartReceipt]) -> None:
    final = place / _name(publication)
    staging = _staging(place, publication.query, publication.result)
    if final.exists():
        _demand_the_same(final, receipts)
    elif (file := final.with_name(f"{final.name}.parquet")).exists():  # delivered earlier by a sink without parts
        parts = [_staged(staging, publication.epoch, receipt.name) for receipt in receipts]
        check_same_rows(file, rows_in([file]), rows_in(parts))
        return
    else:
        gathered = _gather(staging, publication, receipts)
        gathered.rename(final)
    sync_folder(place)
    _note(place, publication, receipts)


def _gather(staging: Path, publication: Publication, receipts: Sequence[_PartReceipt]) -> Path:
    """Move all parts that count, and no others, into one folder. Some may have been moved before a crash."""
    gathered = staging / _name(publication)
    gathered.mkdir(exist_ok=True)
    wanted = {_part(place, receipt): receipt for place, receipt in enumerate(receipts)}
    # left over from before the state was restored from a backup
    for strange in set(os.listdir(gathered)) - set(wanted):
        (gathered / strange).unlink()
    for name, receipt in wanted.items():
        staged = _staged(staging, publication.epoch, receipt.name)
        if staged.exists():
            staged.rename(gathered / name)
    _demand_whole(gathered, wanted)
    sync_folder(gathered)
    return gathered


def _demand_whole(folder: Path, wanted: dict[str, _PartReceipt]) -> None:
    for name, receipt in wanted.items():
        path = folder / name
        found = path.stat().st_size if path.exists() else None
        if found != receipt.bytes:
            what = "is missing" if found is None else f"has {found} bytes"
            msg = (
                f"the part {receipt.name} {what}, but it was written with {receipt.bytes} bytes to {receipt.folder!r};"
                " restore it from a backup of that folder, or start over with a new checkpoint"
            )
            raise SinkError(msg)


def _demand_the_same(final: Path, receipts: Sequence[_PartReceipt]) -> None:
    """Raise if the published parts differ from the receipts. A repeated publication has the same parts."""
    found = {path.name for path in final.glob("part-*")}
    if found != {_part(place, receipt) for place, receipt in enumerate(receipts)}:
        raise other_rows_error(final)


def _note(place: Path, publication: Publication, receipts: Sequence[_PartReceipt]) -> None:
    """Record that an epoch was published, replacing the record of the previous one."""
    path = _noted(place, publication)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(_note_of(publication, receipts))
    sync_folder(draft)
    draft.replace(path)
    sync_folder(place)


def _is_noted(place: Path, publication: Publication, receipts: Sequence[_PartReceipt]) -> bool:
    try:
        return _noted(place, publication).read_text() == _note_of(publication, receipts)
    except FileNotFoundError:
        return False


def _note_of(publication: Publication, receipts: Sequence[_PartReceipt]) -> str:
    names = "\n".join(f"{receipt.name} {receipt.bytes}" for receipt in receipts)
    return f"epoch {publication.epoch}: {len(receipts)} parts {xxhash.xxh3_128_hexdigest(names.encode())}\n"


def _noted(place: Path, publication: Publication) -> Path:
    return place / f"_published-{name_label(publication.result)}-{publication.query}"


def _sweep(place: Path, publication: Publication) -> None:
    """Remove what this and earlier epochs left in staging. All parts that count are published."""
    staging = _staging(place, publication.query, publication.result)
    if not staging.is_dir():
        return
    for path in staging.iterdir():
        known = _STAGED.fullmatch(path.name) or _GATHERED.fullmatch(path.name)
        if known is None or int(known[1]) > publication.epoch:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder is not empty
        staging.rmdir()


def _name(publication: Publication) -> str:
    return epoch_name(publication.query, publication.epoch, publication.result)


def _staging(place: Path, query: str, result: str) -> Path:
    return place / f"_staging-{name_label(result)}-{query}"


def _staged(staging: Path, epoch: int, name: str) -> Path:
    return staging / f"{epoch:09d}.{name}.part"


def _part(place: int, receipt: _PartReceipt) -> str:
    """Return the file name of a part. The number keeps the order of the tasks for readers that sort by name."""
    return f"part-{place:05d}-{receipt.name}.parquet"
