"""The driver: the steps of an epoch, and what follows from the reports of its tasks."""
