"""FSDP on two ranks that are started once; that it is one process is the contract's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hasten.config.schema import DistributeConfig, NetworkConfig, OptimizerName, RunConfig, TrainConfig
from hasten.distribute.fsdp import Fsdp, sharded_blocks
from hasten.distribute.world import World
from hasten.nets.build import build_network
from hasten.nets.recompute import recompute_modules
from tests.distribute.ranks import run_ranks

EXACT = 1e-12
NETWORKS = ["unet", "dynunet", "segresnet", "plainconvunet"]


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    return run_ranks("tests.distribute.fsdp_checks", 2, timeout_s=600)


@pytest.mark.parametrize("network", [*NETWORKS, "tied", "views"])
def test_gradients_are_those_of_one_process(ranks: list[Any], network: str) -> None:
    for rank in ranks:
        assert rank["networks"][network]["gradients"] < EXACT


@pytest.mark.parametrize("network", NETWORKS)
def test_each_rank_keeps_half_of_the_weights(ranks: list[Any], network: str) -> None:
    for rank in ranks:
        result = rank["networks"][network]
        assert result["kept"] == pytest.approx(0.5, abs=0.01)
        assert result["blocks"] > 2


def test_average_and_moments_are_sharded_too(ranks: list[Any]) -> None:
    for rank in ranks:
        result = rank["memory"]
        assert result["kept"] == pytest.approx(0.5, abs=0.01)
        assert result["skeleton"] == 0, "what `whole` fills takes memory between validations"


@pytest.mark.parametrize("network", [*NETWORKS, "tied"])
def test_the_whole_module_is_plain(ranks: list[Any], network: str) -> None:
    """One rank calls it while the others are elsewhere."""
    for rank in ranks:
        assert rank["networks"][network]["whole"] == 0
    assert ranks[0]["networks"][network]["alone"] < EXACT
    assert not ranks[0]["memory"]["whole"], "the average is not for training"
    assert not ranks[0]["memory"]["grad"]


@pytest.mark.parametrize("network", [*NETWORKS, "tied"])
def test_the_gathered_state_has_the_names_and_shared_tensors_of_one_process(ranks: list[Any], network: str) -> None:
    result = ranks[0]["networks"][network]
    assert result["state"] == 0
    assert result["names"], "a weight with two names became two"


def test_channels_last_weights_are_sharded_contiguous_and_whole_in_their_format(ranks: list[Any]) -> None:
    result = ranks[0]["channels_last"]
    assert result["gradients"] < EXACT
    assert result["strides"]
    assert result["alone"] < EXACT


def test_recomputed_blocks_have_the_same_gradients_and_keep_less(ranks: list[Any]) -> None:
    result = ranks[0]["recomputed"]
    assert result["modules"] > 2
    assert result["gradients"] < EXACT
    assert result["saved_True"] < 0.9 * result["saved_False"]
    # A block is gathered for its forward and for its backward pass, and not once more to be computed again.
    assert result["gathers_False"] > 0
    assert result["gathers_True"] - result["gathers_False"] == 2 * (result["blocks_True"] - result["blocks_False"])


@pytest.mark.parametrize(("gradients", "tolerance"), [("fp16", 2e-4), ("bf16", 2e-3)])
def test_gradients_travel_in_16_bits(ranks: list[Any], gradients: str, tolerance: float) -> None:
    # Not as in float32: or nothing was rounded.
    assert 1e-6 < ranks[0][gradients] < tolerance


def test_under_autocast_it_is_ddp(ranks: list[Any]) -> None:
    assert ranks[0]["autocast"]["dtype"] == "torch.bfloat16"
    assert ranks[0]["autocast"]["gradients"] < 1e-6


def test_what_is_not_finite_on_one_rank_is_skipped_on_all(ranks: list[Any]) -> None:
    for rank in ranks:
        result = rank["not_finite"]
        assert (result["skipped"], result["moved"]) == (1, 0)
        assert result["plain"]
        assert result["norm"] == pytest.approx(2**0.5)


def test_weights_of_another_network_are_told(ranks: list[Any]) -> None:
    assert "is [4, 1, 3, 3] here and [4, 1, 1, 3] saved" in ranks[0]["refused"]


def mistakes(**train: Any) -> list[str]:
    return Fsdp(World(size=2), DistributeConfig()).mistakes(RunConfig(train=TrainConfig(**train)))


@pytest.mark.parametrize("name", ["muon", "novograd", "lamb", "nvlamb", "lars"])
def test_optimizers_that_look_at_whole_layers_are_refused(name: OptimizerName) -> None:
    (message,) = mistakes(optimizer=name)
    assert message.startswith(f"train.optimizer: {name} ")
    assert "adamw or sgd" in message


def test_what_it_cannot_do_is_refused_and_all_else_is_not() -> None:
    for name in ("adamw", "sgd"):
        assert mistakes(optimizer=name, precision="bf16", activations="1GiB", accumulate=2) == []
    assert [message.partition(":")[0] for message in mistakes(optimizer="sgd", precision="fp16", compile=True)] == [
        "train.precision",
        "train.compile",
    ]


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())


def test_blocks_that_hold_an_eighth_are_gathered_by_themselves() -> None:
    large, small, other = block(16), block(2), block(16)
    network = nn.Sequential(large, small, nn.Sequential(other, block(4)))
    assert sharded_blocks(network) == [large, other, network]
    assert sharded_blocks(network, share=0.45) == [large, other, network]
    # What is within it is too small, and together it is not.
    assert sharded_blocks(network, share=0.5) == [network[2], network]


def test_a_single_layer_and_a_list_are_no_blocks() -> None:
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    assert sharded_blocks(network) == [network]
    listed = nn.Module()
    listed.parts = nn.ModuleList([block(8), block(8)])
    assert sharded_blocks(listed) == [*listed.parts, listed]


def test_nothing_within_a_recomputed_block_is_gathered_by_itself() -> None:
    inner = nn.Sequential(block(8), block(8))
    network = nn.Sequential(inner, block(8))
    assert sharded_blocks(network)[0] is inner[0]
    recompute_modules(network, ["0"])
    assert sharded_blocks(network) == [inner, network[1], network]


def test_a_module_with_two_names_is_one_block_and_tied_weights_are_gathered_together() -> None:
    network = nn.Sequential(block(8), block(8))
    network.again = network[0]
    assert sharded_blocks(network) == [network[0], network[1], network]
    network[1][0].weight = network[0][0].weight
    assert sharded_blocks(network) == [network]


@pytest.mark.parametrize("name", ["plainconvunet", "residualencoderunet"])
@pytest.mark.parametrize("width", [8, 32, 128])
@pytest.mark.parametrize("share", [1 / 64, 1 / 8, 1 / 3, 0.9])
def test_a_block_gathers_no_weights_that_are_read_before_it_runs(name: str, width: int, share: float) -> None:
    """nnU-Net's decoder has the encoder as a part, and runs after it."""
    channels = (32, 64, 128, width, 320)
    config = NetworkConfig(name=name, channels=channels, strides=((2, 2, 2),) * 4)
    with torch.device("meta"):
        network = build_network(config, num_channels=1, num_classes=2, spatial_dims=3)
    of_encoder = set(network.encoder.parameters())
    taken: set[nn.Parameter] = set()
    for block in sharded_blocks(network, share):
        weights = set(block.parameters()) - taken
        taken |= weights
        if block is network.decoder:
            assert not weights & of_encoder
    assert taken == set(network.parameters())
