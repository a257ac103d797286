"""Serving: planner engines and the orchestrator."""
