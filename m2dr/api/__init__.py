"""The Python interface: what `import m2dr` gives, each part imported when it is first used."""
