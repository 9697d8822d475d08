"""The same benchmark on another system, as its users would write it: what our own rating stands beside."""
