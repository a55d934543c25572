"""Tables with atomic commits, Delta Lake and Iceberg, without their jars.

Spark's tasks write Parquet files with names of their own (``data_file``); the driver then adds all files of a
batch to the table in one commit, by the libraries deltalake (``delta``) or pyiceberg (``iceberg``). The commit also
carries the batch's number, so a repeated batch is recognized (``committed_table``). ``delta`` and ``iceberg`` maintain
their tables, too; ``data_file`` removes files that nothing refers to.

Rules for editors: a file is never overwritten and never removed because a batch is repeated, since it may be committed.
Before a commit, the batch number is read again, from the same state of the table that the commit is based on.
(docs/internals S10)
"""
