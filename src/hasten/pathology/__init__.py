"""Metastasis detection on whole slides: tiles, a tile classifier, heat maps, detections and FROC."""
