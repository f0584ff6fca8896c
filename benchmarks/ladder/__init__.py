"""One training job done several ways, each in a process of its own, and what each way takes to a target."""
