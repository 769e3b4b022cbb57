"""Property tests of trees have no deadline: a busy machine is not a wrong tree."""

from hypothesis import settings

settings.register_profile("trees", deadline=None, max_examples=60)
settings.load_profile("trees")
