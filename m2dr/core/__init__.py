"""Plain records that all packages exchange, without torch, numpy or files."""
