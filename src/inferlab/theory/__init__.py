"""What can be known about inference from a config, a datasheet and arithmetic. No tensors."""
