"""The version of headrace."""

__version__ = "0.1.0"
