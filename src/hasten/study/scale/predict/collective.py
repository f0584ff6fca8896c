"""Seconds of an all-reduce by the alpha-beta model: a latency for each message, and a time for each byte.

Ring and tree of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005); double binary trees, which use the whole bandwidth, of S. Jeaugey, "Massively Scale Your Deep Learning Training
with NCCL 2.4" (2019); the bandwidth's meaning as in nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hasten.study.scale.predict.links import Link, Network


def ring_s(num_bytes: float, workers: int, link: Link) -> float:
    """Reduce-scatter, then all-gather, around a ring: each worker sends 2 (W - 1) messages of 1/W of the bytes."""
    hops = 2 * (workers - 1)
    return hops * link.latency_s + hops / workers * num_bytes / link.bytes_per_s


def tree_s(num_bytes: float, workers: int, link: Link) -> float:
    """Up and down two binary trees with half the bytes each, in pieces: fewer messages after one another."""
    if workers == 1:
        return 0.0
    return 2 * math.ceil(math.log2(workers)) * link.latency_s + 2 * num_bytes / link.bytes_per_s


def flat_s(num_bytes: float, workers: int, link: Link) -> float:
    """The better of ring and tree, as NCCL chooses; the ring's where there are no trees."""
    ring = ring_s(num_bytes, workers, link)
    return min(ring, tree_s(num_bytes, workers, link)) if link.trees else ring


def all_reduce_s(num_bytes: float, workers: int, network: Network) -> float:
    """Seconds until each of `workers` has the sum of everyone's `num_bytes`; whole nodes are filled first.

    Over several nodes: one ring or tree through all workers, which the nodes' adapters slow down, or by level: within
    each node, then between the nodes with 1/per_node of the bytes a worker, then within; whichever is less.
    """
    if workers == 1:
        return 0.0
    if network.per_node == 1:
        return flat_s(num_bytes, workers, _node(network))
    assert network.inside is not None
    if workers <= network.per_node:
        return flat_s(num_bytes, workers, network.inside)
    nodes = math.ceil(workers / network.per_node)
    node = _node(network)
    slower = replace(node, bytes_per_s=min(node.bytes_per_s, network.inside.bytes_per_s))
    # The workers of a node send their parts through its adapters at once: as long as all the bytes take.
    levels = ring_s(num_bytes, network.per_node, network.inside) + flat_s(num_bytes, nodes, node)
    return min(levels, flat_s(num_bytes, workers, slower))


def _node(network: Network) -> Link:
    return replace(network.between, bytes_per_s=network.adapters * network.between.bytes_per_s)
