from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.sample.program import BatchProgram, draw
from hasten.sample.reference import reference_coordinates, reference_sample
from tests.sample.arenas import RENDERS, Shape, case_image, case_label, cut, program_of, random_tables, tables_of

ALL_ON: dict[str, Any] = {
    "foreground_prob": 0.5,
    "flip_prob": (0.5, 0.5, 0.5),
    "affine_prob": 0.7,
    "rotate_deg": (40.0, 20.0, 20.0),
    "shear": 0.1,
    "brightness_prob": 0.5,
    "contrast_prob": 0.5,
    "gamma_prob": 0.5,
    "noise_prob": 0.5,
}
SHAPES: list[Shape] = [(8, 9, 7), (4, 5, 3), (9, 4, 8)]
"""Larger than the patch, smaller than it, and both."""
PATCH = (6, 7, 5)


def starts_of(program: BatchProgram, step: int) -> tuple[list[int], list[list[int]]]:
    size = program.spec.sample.batch_size
    assert size
    sample = torch.arange(step * size, (step + 1) * size)
    drawn = draw(program.spec, program.tables, program.train_cases, program.seed, sample)
    return drawn.case.tolist(), drawn.start.tolist()


@st.composite
def programs(make: st.DrawFn) -> BatchProgram:
    flat = make(st.booleans())
    edge = st.integers(1, 9)
    shape = st.tuples(st.just(1) if flat else edge, edge, edge)
    tables = random_tables(
        make(st.lists(shape, min_size=1, max_size=4)),
        num_channels=make(st.integers(1, 3)),
        num_classes=make(st.integers(2, 4)),
        dtype=make(st.sampled_from(["float16", "float32"])),
        seed=make(st.integers(0, 100)),
    )
    return program_of(
        tables,
        make(st.tuples(st.just(1) if flat else st.integers(1, 7), st.integers(1, 7), st.integers(1, 7))),
        batch_size=make(st.integers(1, 3)),
        seed=make(st.integers(0, 2**62)),
        spacing=make(st.sampled_from([(1.0, 1.0, 1.0), (3.0, 0.7, 1.3)])),
        renders=make(st.sampled_from(list(RENDERS))),
        **ALL_ON,
    )


@settings(max_examples=100, deadline=None)
@given(programs(), st.integers(0, 10**9))
def test_agrees_with_the_reference(program: BatchProgram, step: int) -> None:
    """Labels are compared where the reference is not within 1e-4 voxel of a tie between two."""
    image, label = program(step)
    size = program.spec.sample.batch_size
    cases = tuple(program.train_cases.tolist())
    seed = int(program.seed)
    assert size
    for number in range(size):
        given = (program.spec, program.tables, cases, seed, step * size + number)
        expected_image, expected_label = reference_sample(*given)
        assert np.abs(image[number].numpy() - expected_image).max() <= 1e-5
        coordinates = reference_coordinates(*given)
        clear = (np.abs(coordinates - np.floor(coordinates) - 0.5) > 1e-4).all(0)
        assert (label[number, 0].numpy() == expected_label[0])[clear].all()


@pytest.mark.parametrize("renders", RENDERS)
def test_labels_halfway_between_two_voxels_round_up(renders: str) -> None:
    """A zoom of exactly 2 reads halves and quarters, which float32 holds exactly: every tie is met."""
    tables = random_tables(SHAPES, num_classes=4)
    options: dict[str, Any] = {"affine_prob": 1.0, "rotate_deg": (0.0, 0.0, 0.0), "scale_range": (2.0, 2.0)}
    program = program_of(tables, PATCH, renders=renders, **options)
    _, label = program(0)
    for number in range(4):
        coordinates = reference_coordinates(program.spec, tables, (0, 1, 2), 0, number)
        assert (coordinates % 1 == 0.5).any()
        assert (label[number].numpy() == reference_sample(program.spec, tables, (0, 1, 2), 0, number)[1]).all()


def test_shapes_and_types() -> None:
    image, label = program_of(random_tables(SHAPES, num_channels=2, dtype="float16"), PATCH, **ALL_ON)(0)
    assert image.shape == (4, 2, *PATCH)
    assert image.dtype == torch.float32
    assert label.shape == (4, 1, *PATCH)
    assert label.dtype == torch.uint8


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (3.0, 0.7, 1.3)])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("renders", RENDERS)
def test_with_all_off_a_patch_is_a_slice_of_the_arena(dtype: str, spacing: tuple, flat: bool, renders: str) -> None:
    shapes: list[Shape] = [(1, *shape[1:]) for shape in SHAPES] if flat else SHAPES
    patch = (1, *PATCH[1:]) if flat else PATCH
    tables = random_tables(shapes, num_channels=2, dtype=dtype)
    program = program_of(tables, patch, spacing=spacing, foreground_prob=0.5, batch_size=6, renders=renders)
    for step in range(3):
        image, label = program(step)
        for number, (case, start) in enumerate(zip(*starts_of(program, step), strict=True)):
            assert torch.equal(image[number], cut(case_image(tables, case).float(), start, patch))
            assert torch.equal(label[number], cut(case_label(tables, case)[None], start, patch))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("renders", RENDERS)
def test_a_flip_is_the_flip_of_the_same_patch(axes: tuple[int, ...], renders: str) -> None:
    tables = random_tables(SHAPES, num_channels=2)
    chances = tuple(1.0 if axis in axes else 0.0 for axis in range(3))
    plain, flipped = (
        program_of(tables, PATCH, flip_prob=prob, batch_size=6, renders=renders) for prob in (None, chances)
    )
    for found, expected in zip(flipped(1), plain(1), strict=True):
        assert torch.equal(found, torch.flip(expected, [axis + 2 for axis in axes]))


@pytest.mark.parametrize("options", [ALL_ON, {}], ids=["all on", "all off"])
@pytest.mark.parametrize("renders", RENDERS)
def test_a_batch_of_eight_is_eight_batches_of_one(options: dict[str, Any], renders: str) -> None:
    tables = random_tables(SHAPES, num_channels=2)
    image, label = program_of(tables, PATCH, batch_size=8, renders=renders, **options)(3)
    single = program_of(tables, PATCH, batch_size=1, renders=renders, **options)
    for number in range(8):
        one_image, one_label = single(24 + number)
        assert (image[number] - one_image[0]).abs().max() <= 1e-6
        assert torch.equal(label[number], one_label[0])


def test_a_step_depends_on_the_seed_and_on_nothing_before() -> None:
    tables = random_tables(SHAPES)
    program = program_of(tables, PATCH, seed=5, **ALL_ON)
    later = program(7)
    for step in range(7):
        program(step)
    for again in (program(7), program_of(tables, PATCH, seed=5, **ALL_ON)(7)):
        assert torch.equal(again[0], later[0])
        assert torch.equal(again[1], later[1])
    other = program_of(tables, PATCH, seed=6, **ALL_ON)(7)
    assert not torch.equal(other[0], later[0])
    assert not torch.equal(program(8)[0], later[0])


@pytest.mark.parametrize(("first", "last"), [(0, 3), (5, 6), (30, 70), (4, 4)])
def test_a_run_of_batches_is_its_steps(first: int, last: int) -> None:
    """Steps are drawn together, many at a time; nothing may depend on which."""
    program = program_of(random_tables(SHAPES), PATCH, batch_size=2, **ALL_ON)
    found = list(program.batches(first, last))
    assert len(found) == last - first
    for step, (image, label) in enumerate(found, start=first):
        expected = program(step)
        assert (image - expected[0]).abs().max() <= 1e-6
        assert torch.equal(label, expected[1])


@pytest.mark.parametrize("renders", RENDERS)
def test_batches_share_no_memory_with_the_arena_or_each_other(renders: str) -> None:
    program = program_of(random_tables(SHAPES), PATCH, renders=renders)
    arena, first = (program.tables.image, program.tables.label), program(0)
    kept = [value.clone() for value in (*arena, *first)]
    for image, label in program.batches(0, 3):
        image.fill_(-1)
        label.fill_(9)
    assert all(torch.equal(now, before) for now, before in zip((*arena, *first), kept, strict=True))


def test_global_random_state_is_neither_read_nor_changed() -> None:
    program = program_of(random_tables(SHAPES), PATCH, **ALL_ON)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = program(0)[0]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(program(0)[0], first)


def test_labels_keep_their_set() -> None:
    tables = random_tables(SHAPES, num_classes=4)
    tables.label.mul_(60)
    program = program_of(tables, PATCH, **ALL_ON)
    for step in range(5):
        assert set(program(step)[1].unique().tolist()) <= {0, 60, 120, 180}


def test_image_and_label_move_together() -> None:
    """The image is 10 times the label, so that wherever no two classes are mixed the one must follow from the other."""
    label = np.zeros((12, 13, 14), np.uint8)
    label[2:7, 3:9, 2:6], label[6:11, 2:6, 7:12], label[3:6, 9:12, 7:13] = 1, 2, 3
    tables = tables_of([label[None].astype(np.float32) * 10], [label], 4)
    flips = program_of(tables, (7, 8, 9), flip_prob=(0.5, 0.5, 0.5), foreground_prob=1.0)
    image, found = flips(0)
    assert torch.equal(image, found * 10.0)
    options: dict[str, Any] = {"flip_prob": (0.5, 0.5, 0.5), "rotate_deg": (50.0, 50.0, 50.0), "affine_prob": 1.0}
    binary = tables_of([(label[None] > 0).astype(np.float32)], [(label > 0).astype(np.uint8)], 2)
    image, found = program_of(binary, (7, 8, 9), batch_size=20, foreground_prob=1.0, **options)(0)
    for value in (0, 1):
        pure = (image - value).abs() < 1e-6
        assert pure.sum() > 1000
        assert (found[pure] == value).all()


class NoCopyFromTheHost(TorchDispatchMode):
    """Fails on what makes the host and a device wait for each other; visible on the CPU as well."""

    BANNED = ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        assert not any(name in str(func) for name in self.BANNED), f"{func} in a step"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("patch", [PATCH, (1, 7, 5)])
def test_a_step_on_a_device_copies_nothing_from_the_host(patch: Shape) -> None:
    shapes: list[Shape] = [(patch[0], 9, 8), (patch[0], 4, 5)]
    program = program_of(random_tables(shapes), patch, renders="device", **ALL_ON)
    assert program.spec.spatial_dims == (2 if patch[0] == 1 else 3)
    with NoCopyFromTheHost():
        program(0)
        with pytest.raises(AssertionError, match="lift_fresh"):
            torch.tensor([1.0])


@pytest.fixture
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is traced as it would be for the compiler, then run as it is."""
    real = torch.compile

    def traced(model: Any, *, options: Any, **rest: Any) -> Any:
        return real(model, backend="eager", **rest)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", traced)


@pytest.mark.usefixtures("eager_backend")
def test_one_trace_serves_every_arena_and_step() -> None:
    first = program_of(random_tables(SHAPES), PATCH, compile=True, **ALL_ON)
    assert first.compiled
    with torch._dynamo.config.patch(error_on_recompile=True):
        other = program_of(random_tables([(9, 9, 9), (5, 6, 7)]), PATCH, seed=1, compile=True, **ALL_ON)
        assert other.compiled, other.why
        assert torch.equal(other(5)[0], replace(other, render=RENDERS["device"])(5)[0])


@pytest.mark.usefixtures("eager_backend")
def test_more_programs_than_the_limit_of_torch_can_be_compiled_in_one_process() -> None:
    tables = random_tables(SHAPES)
    with torch._dynamo.config.patch(recompile_limit=1):
        made = [program_of(tables, (2, 2, 2), batch_size=size, compile=True) for size in (1, 2, 3)]
        assert all(program.compiled for program in made)
        for program in made:
            program(1)


@pytest.mark.parametrize("error", [RuntimeError("no compiler here\nmore"), ValueError()])
def test_a_failing_compiler_leaves_the_program_eager(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        def run(*args: Any) -> Any:
            raise error

        return run

    monkeypatch.setattr(torch, "compile", broken)
    tables = random_tables(SHAPES)
    with caplog.at_level(logging.WARNING):
        program = program_of(tables, PATCH, compile=True, **ALL_ON)
        batch = program(0)
    assert not program.compiled
    assert program.why == f"torch.compile failed: {'no compiler here' if str(error) else 'ValueError'}"
    assert len(caplog.records) == 1
    assert torch.equal(batch[0], program_of(tables, PATCH, **ALL_ON)(0)[0])


def test_an_absent_compiler_leaves_the_program_eager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    clear_compiler_search()
    try:
        with config.patch({"cpp.cxx": (None, "/nonexistent/compiler")}):  # monkeypatch would leave it without a value
            program = program_of(random_tables(SHAPES), PATCH, compile=True)
    finally:
        clear_compiler_search()
    assert not program.compiled
    assert "/nonexistent/compiler" in program.why
    assert len([record for record in caplog.records if record.name.startswith("hasten")]) == 1
    program(0)


def clear_compiler_search() -> None:
    """torch remembers which compiler it found."""
    from torch._inductor import cpp_builder

    for name in ("get_cpp_compiler", "cpp_compiler_search"):
        getattr(getattr(cpp_builder, name), "cache_clear", lambda: None)()


@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
def test_the_compiled_program_agrees_with_the_eager_one(
    flat: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    depth = (lambda shape: (1, *shape[1:])) if flat else (lambda shape: shape)
    tables = random_tables([depth(shape) for shape in SHAPES], num_channels=2, dtype="float16")
    program = program_of(tables, depth(PATCH), compile=True, spacing=(3.0, 1.0, 0.8), **ALL_ON)
    assert program.compiled, program.why
    for step, render in itertools.product(range(6), RENDERS.values()):
        found, expected = program(step), replace(program, render=render)(step)
        assert (found[0] - expected[0]).abs().max() <= 1e-5
        assert torch.equal(found[1], expected[1])
