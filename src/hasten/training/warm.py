"""What the first run on a machine compiles, compiled ahead."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hasten.config.schema import RunConfig
from hasten.files import last_line
from hasten.kernels.use import triton_as
from hasten.nets.cpu.library import libraries
from hasten.nets.random_state import all_random_states_kept
from hasten.observe.clock import Clock
from hasten.observe.env import usual_compiler
from hasten.runtime.core_follower import cores_followed
from hasten.runtime.device import current_device, pick_device
from hasten.training.compose import prepare_run


def warm(config: RunConfig | None = None) -> list[Path]:
    """Compile what runs would compile at their start, into the cache folder, where they find it.

    Args:
        config: a run to make ready for its first step too; None compiles only what every run on a CPU needs.

    Returns:
        The files of the C++ functions, one for each width of vectors, the widest first; none on Windows.

    Raises:
        ValueError: the cache folder can't be written to, there is no C++ compiler or it fails, or the run can't start.

    Example:
        >>> files = hasten.warm()
    """
    try:
        built = libraries()
    except (OSError, subprocess.SubprocessError) as error:
        remedy = f"mend the compiler or get one: {usual_compiler()[1]}"
        raise ValueError(f"the C++ functions can't be compiled ({last_line(error)}); {remedy}") from error
    if config is not None:
        device, fused = pick_device(config.train.device), config.train.fused_kernels
        with current_device(device), all_random_states_kept(device), cores_followed(device), triton_as(fused):
            prepare_run(config, Clock(), device=device)
    return built
