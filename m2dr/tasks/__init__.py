"""One file per command, named as it is typed; what commands share is in `pipelines`."""
