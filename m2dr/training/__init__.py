"""Training: embeddings become scores and losses; exits are fitted by least squares."""
