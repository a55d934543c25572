"""Looking at messages: those that are published now, and dead letters."""
