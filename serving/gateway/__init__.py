"""The HTTP gateway in front of a planner and an orchestrator."""
