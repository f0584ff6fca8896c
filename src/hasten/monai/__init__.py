"""Stand-ins for MONAI's classes."""
