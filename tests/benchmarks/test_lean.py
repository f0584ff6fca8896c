"""An environment with what Hasten needs and nothing else."""

from __future__ import annotations

import pytest

from benchmarks import lean


def test_the_needs_of_a_package_come_with_it_and_its_extras_do_not() -> None:
    found = lean.closure(["monai>=1"])
    assert {"monai", "torch", "numpy", "sympy"} <= set(found)
    assert not {"mlflow", "pytest", "transformers"} & set(found)
    with pytest.raises(ValueError, match="no-such-package: is not installed"):
        lean.closure(["no_such_package"])
