"""What all packages share: records, requests, settings, files and errors; no torch."""
