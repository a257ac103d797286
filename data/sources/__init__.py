"""Sources of queries with recorded plans."""
