"""Kafka topics as a source that headrace drives itself: the manifest contains the exact ranges of offsets.

origin    the source as the user defined it, checked
client    requests to the brokers: topics, partitions and offsets; error texts
ledger    in the driver: the offsets that were taken, and the choice of what an epoch takes
reader    in the tasks: reads the messages of ranges of offsets
decoders  convert messages to rows
"""
