"""Settings of the tests of networks."""

from tests.prediction.conftest import _one_thread  # noqa: F401
