"""A cluster's history: figures for graphs, rates, changes and alerts."""
