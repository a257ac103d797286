"""Data: queries, recorded or teacher plans, verification, splits."""
