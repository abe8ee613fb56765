"""Executors of a model: what a model is (`spec`), what a step is (`step`), and who runs it (`executor`)."""
