"""Topics, channels, messages and their queues: nsqd without its faces."""
