"""Adapters that let MTEB and BEIR use models and indexes of m2dr."""
