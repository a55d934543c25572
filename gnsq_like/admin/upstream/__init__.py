"""The daemons that the admin polls: which there are, rounds of requests to all of them, sums of the answers."""
