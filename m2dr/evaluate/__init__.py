"""Runs become measures, measures become tables and figures."""
