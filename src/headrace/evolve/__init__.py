"""Changed queries: comparison with the query that made a state, and migration."""
