"""The daemons that the admin asks: which there are, one round of questions to all, sums of their answers."""
