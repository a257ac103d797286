"""plansmith distils small planner models: contract, data, training, serving, eval."""

__version__ = "0.1.0"
