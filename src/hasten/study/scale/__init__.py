"""How a training gains from more workers: runs over counts of them, what they gained, and what it cost in quality."""
