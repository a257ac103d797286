"""vLLM as a process behind a planner; reached over HTTP, never imported."""
