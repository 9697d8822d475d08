"""Topics of Kafka as a source that headrace drives itself: exact ranges of offsets, which stand in the manifest.

origin    what the user named, checked
client    the broker, asked: topics, partitions, offsets; what is told of its errors
ledger    in the driver: what was taken, and what an epoch takes
reading   in the tasks: the messages of ranges
decoding  messages as rows
"""
