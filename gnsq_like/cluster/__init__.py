"""A cluster's daemons, asked and changed side by side over HTTP: who answered, their sums, and who acted."""
