"""Property tests here must not fail because a machine is busy: hypothesis' own per-example deadline is off."""

from hypothesis import settings

settings.register_profile("wire", deadline=None)
settings.load_profile("wire")
