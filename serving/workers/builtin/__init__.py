"""Workers that come along, each off unless it is named: arithmetic, dates, files under a root, SQLite queries."""
