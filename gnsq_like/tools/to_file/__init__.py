"""Topics into files, as NSQ's nsq_to_file writes them (docs/internals 6.1): ``gnsq-like to-file``.

A message is finished only after it has been synced to disk, in a file that can be read up to there whatever happens: a
sync ends a gzip member or zstd frame, and the next one is begun. Modules:

- ``plan``: the options, and the names of files
- ``members``: compression, and where the last complete member of a file ends
- ``log_file``: one topic's files: opening, writing, rotating, syncing, closing; blocks, so it runs in threads
- ``leftovers``: files that an earlier run did not close
- ``outputs``: where closed files go: a directory, or an object store, to which they are uploaded
- ``topic_archive``: one topic: when to write, sync and finish
- ``archive``: all topics, and those that come later
"""
