"""Records of a watched script turned into findings: one file an idea, pure functions."""
