"""Where queries come from: the user's logs, benchmarks, and a teacher that invents them from the catalog."""
