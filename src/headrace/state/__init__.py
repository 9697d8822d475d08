"""Durable state of a query: immutable blocks, and a log of manifests that say which blocks count.

    state after epoch n  =  the blocks named by manifests/n, and nothing else

Layers, each knowing only the one before: storage (files), blocks (Arrow data), manifest (the record), store
(the folder and its one writer).
"""

from __future__ import annotations

from headrace.state.blocks import Block, BlockReader, OpenBlock, block_name, epoch_of, write_block
from headrace.state.manifest import Manifest, OperatorState, Output, SourceState, Totals, digest
from headrace.state.storage import LocalStorage, MemoryStorage, Storage, SyncFailed
from headrace.state.store import StateStore

__all__ = [
    "Block",
    "BlockReader",
    "LocalStorage",
    "Manifest",
    "MemoryStorage",
    "OpenBlock",
    "OperatorState",
    "Output",
    "SourceState",
    "StateStore",
    "Storage",
    "SyncFailed",
    "Totals",
    "block_name",
    "digest",
    "epoch_of",
    "write_block",
]
