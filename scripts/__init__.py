"""What developers and `make` run: the demo, the compatibility table. Not installed."""
