"""The source: a topic's channel as a stream or as a batch of rows, with bodies as bytes or as columns."""
