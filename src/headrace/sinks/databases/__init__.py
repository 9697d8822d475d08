"""Databases with transactions, one module each, with a common interface (`base`)."""
