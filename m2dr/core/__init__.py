"""What all packages share: records, requests, settings, files and errors; no torch."""

VERSION = "0.1.0"  # of m2dr
