"""Arrow tables, DuckDB connections, types, sorting and compiled loops."""
