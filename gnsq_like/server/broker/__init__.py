"""Topics, channels, messages and their queues: nsqd without its TCP and HTTP servers."""
