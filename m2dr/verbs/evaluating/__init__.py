"""Grids, tasks, comparisons, costs, figures and reports."""
