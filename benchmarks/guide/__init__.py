"""The published advice of the tuning guides: each claim a small benchmark that says whether it holds here."""
