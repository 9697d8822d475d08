"""Databases with transactions, one file each, behind one small interface (`base`)."""
