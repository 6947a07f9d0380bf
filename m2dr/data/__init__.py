"""Datasets: a name becomes texts, judgements and training groups; texts become token arrays."""
