"""Topics into files, as NSQ's nsq_to_file writes them (docs/internals 6.1): ``gnsq-like to-file``.

A message is finished only after it is synced to disk, in a file that can be read up to that point: a sync ends a gzip
member or zstd frame. Modules:

- ``plan``: the options, and the names of files
- ``members``: compression, and where the last complete member of a file ends
- ``log_file``: one topic's files: opening, writing, rotating, syncing, closing; blocks, so it runs in threads
- ``leftovers``: files that an earlier run did not close
- ``outputs``: where closed files go: a directory, or an object store, to which they are uploaded
- ``topic_archive``: one topic: when to write, sync and finish
- ``archive``: all topics, including those that appear later
"""
