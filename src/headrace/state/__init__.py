"""Durable state of a query: immutable blocks, and a log of manifests that name the blocks in use.

    state after epoch n  =  the blocks named by manifests/n, and nothing else

Layers, each of which uses only the one before: storage (files), blocks (Arrow data), manifest (the record of an epoch),
store (the folder and its single writer).
"""

from __future__ import annotations

from headrace.state.blocks import Block, BlockReader, OpenBlock, block_name, epoch_of, write_block
from headrace.state.fsync import SyncFailed
from headrace.state.manifest import Manifest, OperatorState, OutboxEntry, SourceState, Totals, manifest_digest
from headrace.state.storage import Lease, LocalStorage, Storage, open_storage
from headrace.state.store import StateStore

__all__ = [
    "Block",
    "BlockReader",
    "Lease",
    "LocalStorage",
    "Manifest",
    "OpenBlock",
    "OperatorState",
    "OutboxEntry",
    "SourceState",
    "StateStore",
    "Storage",
    "SyncFailed",
    "Totals",
    "block_name",
    "epoch_of",
    "manifest_digest",
    "open_storage",
    "write_block",
]
