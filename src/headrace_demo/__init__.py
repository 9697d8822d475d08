"""Demonstrations and the servers that they need."""
