"""The Delta sink: writes rows and the number of their epoch in one commit, as an application transaction.

    txn: appId = "headrace <query> <result>", version = the epoch

Invariant: the table's log contains the newest epoch of each result, and the sink reads it before every commit. If two
commits of one application conflict, the log rejects the second, so a superseded driver adds nothing. Files of a failed
commit are in no log; `vacuum` removes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.errors import QueryError, SinkError
from headrace.sinks.base import Delivery
from headrace.sinks.epoch_marks import mark_of, other_results_error
from headrace.sinks.lake import LakeTable, check_fits, signed_type, to_table_rows, wanted_schema
from headrace.sinks.patience import Unreachable
from headrace.sinks.result_folders import name_label
from headrace.support.extras import import_extra
from headrace.support.secrets import SealedSettings, mask_secrets

NOTE = "headrace"  # key of the commit's metadata that identifies its rows
# matches, for example, "Generic S3 error": the store is unreachable
OF_A_STORE = re.compile("Generic (?!DeltaTable|delta)")
LOOK_BACK = 50  # number of commits in which the metadata of the newest epoch is searched


class DeltaTable(LakeTable):
    """The Delta sink."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None, ordered: bool, seconds: float) -> None:
        self._library = import_extra("deltalake", "delta", "hr.sinks.delta")
        self._errors = import_extra("deltalake.exceptions", "delta", "hr.sinks.delta")
        self.ordered = ordered
        self.uri = str(mask_secrets(uri))
        self._given = SealedSettings(
            {"table_uri": uri, "storage_options": dict(options or {}) or None}, kept=self.uri
        ).open()
        super().__init__(f"the Delta table {self.uri}", seconds)

    def _deliver(self, delivery: Delivery) -> None:
        table, schema = self._prepare(delivery.table.schema)
        if self._has(table, delivery):
            return
        with self._named_errors():
            transaction = self._library.Transaction(_application(delivery.query, delivery.result), delivery.epoch)
            said = self._library.CommitProperties({NOTE: _note(delivery)}, app_transactions=[transaction])
            rows = to_table_rows(delivery.table, schema)
            self._library.write_deltalake(table, rows, mode="append", commit_properties=said)

    def _noted(self, query: str, result: str) -> int | None:
        with self._named_errors():
            found = self._open().transaction_version(_application(query, result))
        return None if found is None else int(found)

    def _has(self, table: Any, delivery: Delivery) -> bool:
        """Return whether the epoch is stored. Raise if another one is stored under its number."""
        with self._named_errors():
            known = table.transaction_version(_application(delivery.query, delivery.result))
            if known is None or known < delivery.epoch:
                return False
            notes = [note for commit in table.history(LOOK_BACK) if (note := commit.get(NOTE)) is not None]
        same_epoch = [note for note in notes if note.startswith(_note(delivery).partition(":")[0] + ":")]
        if known > delivery.epoch or (same_epoch and _note(delivery) not in same_epoch):
            raise other_results_error(self.place, delivery, known)
        return True

    def _prepare(self, schema: pa.Schema) -> tuple[Any, pa.Schema]:
        wanted = wanted_schema(schema, _held, "a Delta table")
        with self._named_errors():
            try:
                table = self._open()
            except self._errors.TableNotFoundError:
                self._may_make()
                table = self._library.DeltaTable.create(**self._given.opened, schema=wanted, mode="ignore")
            found = pa.schema(table.schema().to_arrow())
        check_fits(wanted, found, self.place)
        self._was_there = True
        return table, found

    def _open(self) -> Any:
        """Read the log from its last checkpoint. Updating an open table could mix its log with that of a new table at
        the same place.
        """
        return self._library.DeltaTable(**self._given.opened)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        with self._given.hiding():
            try:
                yield
            except (SinkError, QueryError):
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).partition('   0: <unknown>')[0].split())}"
                passing = isinstance(error, (OSError, self._errors.CommitFailedError)) or OF_A_STORE.search(text)
                if passing:  # a disk, a network or another writer
                    raise Unreachable(text) from None
                raise self._refused(text) from None

    def close(self) -> None:
        """Do nothing: no connection stays open between deliveries."""

    def __repr__(self) -> str:
        return f"delta({self.uri!r})"


def _application(query: str, result: str) -> str:
    return f"headrace {query} {name_label(result)}"


def _note(delivery: Delivery) -> str:
    return f"{_application(delivery.query, delivery.result)} {mark_of(delivery)}"


def _held(kind: pa.DataType) -> pa.DataType | None:
    return signed_type(kind, pa.types.is_time)
