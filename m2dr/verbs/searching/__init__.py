"""Texts are searched for, by one warm encoder or by words."""
