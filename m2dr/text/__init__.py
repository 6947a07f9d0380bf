"""A name becomes texts, texts become tokens."""
