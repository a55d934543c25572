"""A cluster's daemons over HTTP: asked in parallel, summed, and changed."""
