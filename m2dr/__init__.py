"""Elastic dense retrieval: one dual encoder, cut to any layer and any prefix of its embedding."""

__version__ = "0.1.0"
