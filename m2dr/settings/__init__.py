"""Settings of commands: read from a TOML file, `key=value` words and options, and checked."""
