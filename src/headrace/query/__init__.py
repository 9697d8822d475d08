"""What a query is: frozen records that validate themselves, and nothing about how they are run."""
