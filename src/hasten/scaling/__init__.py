"""How training scales with workers: runs over several worker counts, their speed-up and their loss of quality."""
