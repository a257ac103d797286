"""Runs of plans: orchestrator, journal, events, answers."""
