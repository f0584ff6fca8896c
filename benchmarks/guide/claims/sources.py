"""The guides that the claims are taken from."""

TUNING = "PyTorch Performance Tuning Guide (S. Migacz)"
SLIDES = "PyTorch Performance Tuning Guide, slides of ECCV 2020 and GTC 2021 (S. Migacz, NVIDIA)"
MONAI = "MONAI Fast Model Training Guide"
NVIDIA = "NVIDIA DeepLearningExamples"
