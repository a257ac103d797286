"""The ReAct agent: baseline, and the last fallback of a planner."""
