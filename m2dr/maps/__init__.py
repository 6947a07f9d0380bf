"""Maps of queries: words, exits and a bridge, fitted to documents that are encoded already."""
