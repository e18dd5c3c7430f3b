"""Tables of any form as graphs: DuckDB reads, joins and numbers their rows."""
