from tests.predict.conftest import _one_thread  # noqa: F401
