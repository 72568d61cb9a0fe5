"""Pipelines: several jobs, of any modalities, as one: their plan, its shape, and how a step comes to its job; pure."""
