"""Adapters that let MTEB use models of m2dr, and Pyserini its indexes."""
