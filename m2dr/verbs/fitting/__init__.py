"""Fitted exits: their texts, their moments, and the command."""
