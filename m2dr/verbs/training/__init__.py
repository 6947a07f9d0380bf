"""Training runs, from a recipe to a model folder."""
