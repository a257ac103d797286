"""Training: shared-prefix LoRA distillation of a planner."""
