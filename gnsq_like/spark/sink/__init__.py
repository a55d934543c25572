"""The sink: rows of a batch or stream become messages."""
