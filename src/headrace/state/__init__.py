"""Durable state of a query: immutable blocks, and a log of manifests that name the blocks in use.

    state after epoch n  =  manifests/n and the blocks that it names, and nothing else

Modules, each of which imports only modules that are listed before it:

    fsync              syncs files and folders
    checkpoint_folder  checks the folder of a state, and locks it for one writer
    storage            files with write-once names
    blocks             Arrow files, and their descriptions in manifests
    schemas            schemas as JSON
    manifest           the record of one committed epoch
    head               the second record of the newest committed epoch
    store              loads, commits and cleans; the only writer of a folder
    merge_planning     the small blocks that become one
    state_tables       the rows of a state table in its blocks
    bases              the groups of a state table that are written whole
    caches             state tables that a machine keeps between epochs, outside the checkpoint
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
