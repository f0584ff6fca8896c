"""Made-up data sets."""
