"""How a network runs on this machine: device, precision, memory, threads, and measured choices."""
