from __future__ import annotations

import importlib.metadata

import pytest

from benchmarks.gpus import pack


def test_wheels_are_those_installed_here_and_never_torch() -> None:
    result = pack.wanted(["monai", "Pytorch_Ignite", "monai"])
    assert result == [f"{name}=={importlib.metadata.version(name)}" for name in ("monai", "pytorch-ignite")]
    for name in ("torch", "triton", "nvidia-cudnn-cu13"):
        with pytest.raises(ValueError, match="own build"):
            pack.wanted([name])
    with pytest.raises(ValueError, match="not installed here"):
        pack.wanted(["no-such-package-here"])


def test_everything_needed_is_installed_and_known() -> None:
    assert len(pack.wanted(pack.NEEDED)) == len(pack.NEEDED)
