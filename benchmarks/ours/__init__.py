"""Hasten's arm of each benchmark: one file a script, so that what is compared with whom is plain to see."""
