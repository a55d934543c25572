"""JSON bodies as values of a schema, without Spark: exact values, or the reason for a rejection."""
