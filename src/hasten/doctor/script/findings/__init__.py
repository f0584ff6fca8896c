"""Records of a watched script turned into findings: pure functions."""
