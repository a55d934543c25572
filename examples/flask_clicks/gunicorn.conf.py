"""gunicorn reads this file from the directory it is started in."""

from gnsq_like.contrib.gunicorn import WorkerReaders

worker_class = "gevent"
workers = 2
# The pages' streams never end, so a worker that stops need not wait long for its requests.
graceful_timeout = 3

readers = WorkerReaders()
post_worker_init = readers.post_worker_init
worker_int = readers.worker_int
worker_exit = readers.worker_exit
