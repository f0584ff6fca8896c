"""Prediction: from images and a trained model to label maps; and models for use elsewhere."""
