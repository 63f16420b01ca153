"""The engine: requests go in, tokens come out, and every second of it is accounted for."""
