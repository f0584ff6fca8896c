"""Whole slides: read by whichever library is there, cut into tiles where there is tissue, and made up for tests."""

from hasten.cases.slide.open import Level, Slide, open_slide

__all__ = ["Level", "Slide", "open_slide"]
