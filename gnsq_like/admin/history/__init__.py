"""What the admin remembers of a cluster: figures for graphs, rates, changes and alerts."""
