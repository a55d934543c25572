"""gunicorn reads this file where it is started."""

from gnsq_like.contrib.gunicorn import WorkerReaders

worker_class = "gevent"
workers = 2
# The pages' streams have no end: a worker that goes need not wait for them as long as for a request.
graceful_timeout = 3

readers = WorkerReaders()
post_worker_init = readers.post_worker_init
worker_int = readers.worker_int
worker_exit = readers.worker_exit
