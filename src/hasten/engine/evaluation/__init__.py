"""Label maps scored against their reference, on its grid: Dice, IoU, HD95 and NSD for each case and class."""
