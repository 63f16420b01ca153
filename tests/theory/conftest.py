"""Settings of the property tests: repeatable, and untroubled by a busy machine."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("steady")
