"""The same benchmark on another system, written as its users would, for comparison with headrace."""
