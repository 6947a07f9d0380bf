"""Evaluation: measures of runs, grids over all cuts, significance, costs, figures and reports."""
