"""How many nodes and processes a job takes, and the jobs of a sweep over counts of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The processes of a job: one a GPU, or `tasks_per_node` of them where there are none."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int = 0

    @property
    def world(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def unit(self) -> str:
        return "gpus" if self.gpus_per_node else "tasks"

    @property
    def name(self) -> str:
        """Of the job and of its run's folder, such as gpus-8."""
        return f"{self.unit}-{self.world}"


def shape_of(*, nodes: int | None, gpus_per_node: int, tasks_per_node: int | None) -> Shape:
    """The shape that the options ask for; one node where their number is open. Raises ValueError naming the option."""
    if nodes is not None and nodes < 1:
        raise ValueError(f"--nodes {nodes}: must be 1 or more")
    if gpus_per_node < 0:
        raise ValueError(f"--gpus-per-node {gpus_per_node}: must be 1 or more, or 0 on a cluster without GPUs")
    if tasks_per_node is not None and tasks_per_node < 1:
        raise ValueError(f"--tasks-per-node {tasks_per_node}: must be 1 or more")
    if not gpus_per_node and tasks_per_node is None:
        raise ValueError(
            "--gpus-per-node 0: says nothing of how many processes a node runs; on a cluster without GPUs add "
            "--tasks-per-node N"
        )
    if gpus_per_node and tasks_per_node not in (None, gpus_per_node):
        raise ValueError(
            f"--tasks-per-node {tasks_per_node}: each GPU has one process, so that {gpus_per_node} GPUs a node make "
            f"{gpus_per_node} tasks; leave --tasks-per-node out"
        )
    return Shape(nodes=nodes or 1, tasks_per_node=gpus_per_node or tasks_per_node or 1, gpus_per_node=gpus_per_node)


def sweep_of(text: str, full: Shape, *, most_nodes: int | None = None) -> list[Shape]:
    """One shape for each count of a sweep such as "gpus=1,2,4,8" (or "tasks=1,2" without GPUs), in the order given.

    full: a node as it is filled. most_nodes: what --nodes allows, None for any number.
    Raises ValueError naming the count that is no number, comes twice, or does not divide into whole nodes.
    """
    unit, each = full.unit, full.tasks_per_node
    name, equals, values = text.partition("=")
    if not equals or name.strip() not in ("gpus", "tasks"):
        raise ValueError(f"--sweep {text}: must read {unit}=1,2,4, the counts to train on")
    if name.strip() != unit:
        other = "the nodes have GPUs" if unit == "gpus" else "there are no GPUs without --gpus-per-node"
        raise ValueError(f"--sweep {text}: {other}; write --sweep {unit}={values}")
    shapes: list[Shape] = []
    for word in values.split(","):
        count = int(word) if word.strip().isascii() and word.strip().isdigit() else 0
        if count < 1:
            raise ValueError(f"--sweep {text}: {word.strip()!r} is no count; write whole numbers, as {unit}=1,2,4")
        nodes = -(-count // each)
        if count > each and count % each:
            lower = count // each * each
            raise ValueError(
                f"--sweep {text}: {count} does not divide into nodes of {each}; use {lower} or {lower + each}, or "
                f"another --{unit}-per-node"
            )
        if most_nodes is not None and nodes > most_nodes:
            raise ValueError(f"--sweep {text}: {count} takes {nodes} nodes, more than --nodes {most_nodes}")
        tasks_per_node = min(count, each)
        shape = Shape(
            nodes=nodes, tasks_per_node=tasks_per_node, gpus_per_node=tasks_per_node if full.gpus_per_node else 0
        )
        if shape in shapes:
            raise ValueError(f"--sweep {text}: {count} is there twice; leave one out")
        shapes.append(shape)
    return shapes
