"""`hasten doctor` without an argument: what in this machine and its installed versions slows training down."""
