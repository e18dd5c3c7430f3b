"""Tables of any form as graphs: rows read, typed, joined and numbered by DuckDB."""
