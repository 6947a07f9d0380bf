"""Vectors become something that can be searched."""
