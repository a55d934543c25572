"""JSON bodies as values of a schema, without Spark: what fits, kept exactly, or the reason why not."""
