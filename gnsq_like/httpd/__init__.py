"""A strict HTTP/1.1 server on gevent, for the daemons, the admin, the workers and Spark's live page."""
