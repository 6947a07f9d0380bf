"""Texts and vectors become stores and indexes, which are kept in step with their corpus."""
