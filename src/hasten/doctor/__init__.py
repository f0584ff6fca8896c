"""What finds and measures bottlenecks."""
