"""Models are trained, fitted and pre-trained, and negatives mined for them."""
