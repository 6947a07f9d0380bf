"""Tasks: one file for each thing that a person asks for, joined of the packages below."""
