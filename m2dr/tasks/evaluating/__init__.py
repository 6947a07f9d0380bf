"""Measures, costs and choices of cuts, over one corpus or many."""
