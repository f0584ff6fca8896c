"""How many nodes and processes the options of `hasten slurm submit` mean."""

from __future__ import annotations

import pytest

from hasten.distribute.slurm.jobs import Shape, shape_of, sweep_of

FOUR = shape_of(nodes=None, gpus_per_node=4, tasks_per_node=None)


def test_a_process_for_each_gpu() -> None:
    shape = shape_of(nodes=4, gpus_per_node=8, tasks_per_node=None)

    assert shape == Shape(nodes=4, tasks_per_node=8, gpus_per_node=8)
    assert (shape.world, shape.name) == (32, "gpus-32")


def test_processes_where_there_are_no_gpus() -> None:
    shape = shape_of(nodes=2, gpus_per_node=0, tasks_per_node=3)

    assert (shape.world, shape.gpus_per_node, shape.name) == (6, 0, "tasks-6")


@pytest.mark.parametrize(
    ("nodes", "gpus", "tasks", "said"),
    [
        (1, 0, None, "--gpus-per-node 0: .* add --tasks-per-node"),
        (1, -1, None, "--gpus-per-node -1"),
        (0, 1, None, "--nodes 0"),
        (1, 0, 0, "--tasks-per-node 0"),
        (1, 4, 2, "--tasks-per-node 2: each GPU has one process"),
    ],
)
def test_shapes_that_make_no_sense(nodes: int, gpus: int, tasks: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shape_of(nodes=nodes, gpus_per_node=gpus, tasks_per_node=tasks)


def test_a_sweep_fills_nodes() -> None:
    shapes = sweep_of("gpus=1,2, 4,8", FOUR)

    assert [(shape.nodes, shape.gpus_per_node, shape.world) for shape in shapes] == [
        (1, 1, 1), (1, 2, 2), (1, 4, 4), (2, 4, 8),
    ]  # fmt: skip
    assert [shape.name for shape in shapes] == ["gpus-1", "gpus-2", "gpus-4", "gpus-8"]


def test_a_sweep_without_gpus() -> None:
    (shape,) = sweep_of("tasks=6", shape_of(nodes=None, gpus_per_node=0, tasks_per_node=2))

    assert (shape.nodes, shape.tasks_per_node, shape.gpus_per_node) == (3, 2, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus=1,6", "6 does not divide into nodes of 4; use 4 or 8"),
        ("gpus=1,x", "'x' is no count"),
        ("gpus=", "'' is no count"),
        ("gpus=0", "'0' is no count"),
        ("gpus=2,2", "2 is there twice"),
        ("gpus", "must read gpus=1,2,4"),
        ("cores=2", "must read gpus=1,2,4"),
        ("tasks=2", "the nodes have GPUs; write --sweep gpus=2"),
        ("gpus=4,16", "16 takes 4 nodes, more than --nodes 2"),
    ],
)
def test_sweeps_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sweep_of(text, FOUR, most_nodes=2)
