"""The default augmentation once more, slowly: one sample, one voxel, one number at a time, in Python and float64.

Nothing is shared with the fast path, stream numbers included, so that the tests compare two independent accounts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from hasten.cache.arena import Store
from hasten.config.augment import ROTATE_DEG, SCALE_RANGE
from hasten.config.schema import SampleConfig

Key = tuple[int, int]
Spacing = tuple[float, float, float]
_MASK = 2**32 - 1


def reference_sample(
    sample: SampleConfig, spacing: Spacing, store: Store, train_cases: Sequence[int], seed: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Image (C, D, H, W) float32 and label (1, D, H, W) uint8 of a global sample number."""
    assert sample.patch is not None
    case, channels = train_cases[case_of(seed, number, len(train_cases))], store.channels["image"]
    size, first = [int(side) for side in store.shape[case]], int(store.offset[case])
    volume = math.prod(size)
    stored = np.asarray(store.values["image"][first * channels : (first + volume) * channels])
    voxels = stored.astype(np.float64).reshape(channels, *size)
    classes = np.asarray(store.values["label"][first : first + volume]).reshape(size)
    coordinates = reference_coordinates(sample, spacing, store, train_cases, seed, number)
    image = np.zeros((channels, *sample.patch))
    label = np.zeros((1, *sample.patch), np.uint8)
    for at in np.ndindex(*sample.patch):
        point = coordinates[(slice(None), *at)]
        image[(slice(None), *at)] = _interpolate(voxels, point)
        nearest = [math.floor(place + 0.5) for place in point]
        if all(0 <= place < length for place, length in zip(nearest, size, strict=True)):
            label[(0, *at)] = classes[tuple(nearest)]
    return _intensity(image, sample_key(seed, number), sample, store.spatial_dims).astype(np.float32), label


def reference_coordinates(
    sample: SampleConfig, spacing: Spacing, store: Store, train_cases: Sequence[int], seed: int, number: int
) -> np.ndarray:
    """(3, D, H, W) float64: where in its case each voxel of the sample is read, in voxels."""
    assert sample.patch is not None
    case = train_cases[case_of(seed, number, len(train_cases))]
    key = sample_key(seed, number)
    half = (np.array(sample.patch) - 1) / 2
    start = crop_start(store, case, key, sample)
    matrix = affine_matrix(key, sample, spacing, store.spatial_dims)
    coordinates = np.zeros((3, *sample.patch))
    for at in np.ndindex(*sample.patch):
        coordinates[(slice(None), *at)] = start + half + matrix @ (np.array(at) - half)
    return coordinates


def hash32(word: int) -> int:
    word ^= word >> 16
    word = word * 0x21F0AAAD % 2**32
    word ^= word >> 15
    word = word * 0x735A2D97 % 2**32
    return word ^ (word >> 15)


def sample_key(seed: int, sample: int) -> Key:
    base = hash32((seed & _MASK) ^ hash32((seed >> 32) + 0x1E3779B1))
    first = hash32((sample & _MASK) ^ hash32((sample >> 32) ^ base))
    return first, hash32(((sample + 0x5BD1E995) & _MASK) ^ hash32((first + base) & _MASK))


def word_at(key: Key, stream: int, counter: int) -> int:
    start = hash32((key[0] + stream * 0x2545F491 + 0x1234567) & _MASK)
    return hash32(hash32(counter ^ start) ^ key[1])


def uniform(key: Key, stream: int, counter: int = 0) -> float:
    return (word_at(key, stream, counter) >> 8) / 2**24


def normal(key: Key, stream: int, counter: int) -> float:
    high, low = divmod(word_at(key, stream, counter), 2**16)
    return math.sqrt(-2 * math.log((high + 0.5) / 2**16)) * math.cos(2 * math.pi * low / 2**16)


def happens(key: Key, stream: int, probability: float, counter: int = 0) -> bool:
    return uniform(key, stream, counter) < float(np.float32(probability))


def between(key: Key, stream: int, low: float, high: float, counter: int = 0) -> float:
    return low + (high - low) * uniform(key, stream, counter)


def below(word: int, bound: int) -> int:
    return word * bound // 2**32


def case_of(seed: int, sample: int, num_cases: int) -> int:
    """Position in the list of training cases."""
    epoch, place = divmod(sample, num_cases)
    key = sample_key(seed, epoch)
    return sorted(range(num_cases), key=lambda number: word_at(key, 0x0DE2, number))[place]


def operation_key(key: Key, position: int) -> Key:
    """That of the operation at a position of the chain."""
    salt = (position * 0x3C6EF372 + 0x51ED270B) & _MASK
    return hash32((key[0] + salt) & _MASK), hash32(key[1] ^ salt)


def used(key: Key, probability: float) -> bool:
    """Whether an operation changes a sample. key: of the operation."""
    return probability >= 1 or happens(key, 0x7E, probability)


def crop_start(store: Store, case: int, key: Key, config: SampleConfig) -> np.ndarray:
    """(3,) first voxel of the patch in its case. key: of the sample."""
    assert config.patch is not None
    assert store.sets is not None
    key = hash32(key[0] ^ 0x2C1B), hash32(key[1] ^ 0x2C1B)
    size = [int(number) for number in store.shape[case]]
    bounds = [(min(length - edge, 0), max(length - edge, 0)) for length, edge in zip(size, config.patch, strict=True)]
    counts = [int(number) for number in store.sets.num[case]]
    present = [index for index, count in enumerate(counts) if count]
    if present and happens(key, 2, config.foreground_prob):
        index = present[int(uniform(key, 0x61) * len(present))]
        slot = int(store.sets.first[case, index]) + below(word_at(key, 0x62, 0), counts[index])
        voxel = np.unravel_index(int(store.sets.points[slot]), size)
        wished = [int(place) - edge // 2 for place, edge in zip(voxel, config.patch, strict=True)]
        return np.array([min(max(place, low), high) for place, (low, high) in zip(wished, bounds, strict=True)])
    words = [word_at(key, 1, counter) for counter in range(3)]
    return np.array([low + below(word, high - low + 1) for word, (low, high) in zip(words, bounds, strict=True)])


def affine_matrix(key: Key, config: SampleConfig, spacing: Spacing, spatial_dims: int) -> np.ndarray:
    """(3, 3) from offset about the patch centre in the patch to offset in the case, in voxels. key: of the sample."""
    chances = (config.flip_prob or (0.0, 0.0, 0.0))[3 - spatial_dims :]
    turned = [used(operation_key(key, 1 + axis), chance) for axis, chance in enumerate(chances)]
    flip = np.diag([*[1.0] * (3 - spatial_dims), *(-1.0 if each else 1.0 for each in turned)])
    key = operation_key(key, 0)
    if not used(key, config.affine_prob):
        return flip
    angles = [
        math.radians(between(key, 1, -limit, limit, axis)) for axis, limit in enumerate(config.rotate_deg or ROTATE_DEG)
    ]
    zoom = between(key, 5, *(config.scale_range or SCALE_RANGE))
    matrix = rotation(0, angles[0])
    if spatial_dims == 3:
        matrix = matrix @ rotation(1, angles[1]) @ rotation(2, angles[2]) / zoom
    else:
        matrix = matrix @ np.diag([1, 1 / zoom, 1 / zoom])
    return np.diag(1 / np.array(spacing)) @ matrix @ np.diag(spacing) @ flip


def rotation(axis: int, angle: float) -> np.ndarray:
    """(3, 3): about D it turns H towards W, about H it turns W towards D, about W it turns D towards H."""
    matrix = np.eye(3)
    one, two = (axis + 1) % 3, (axis + 2) % 3
    matrix[one, one] = matrix[two, two] = math.cos(angle)
    matrix[two, one], matrix[one, two] = math.sin(angle), -math.sin(angle)
    return matrix


def _interpolate(voxels: np.ndarray, point: np.ndarray) -> np.ndarray:
    """(C,) trilinear value; voxels outside the case are 0."""
    value = np.zeros(len(voxels))
    for corner in itertools.product((0, 1), repeat=3):
        places = [math.floor(place) + step for place, step in zip(point, corner, strict=True)]
        if all(0 <= place < length for place, length in zip(places, voxels.shape[1:], strict=True)):
            shares = [1 - abs(place - number) for place, number in zip(point, places, strict=True)]
            value += math.prod(shares) * voxels[(slice(None), *places)]
    return value


def _intensity(image: np.ndarray, key: Key, config: SampleConfig, spatial_dims: int) -> np.ndarray:
    """Brightness, contrast, gamma, noise. image: (C, D, H, W); key: of the sample."""
    brightness, contrast, gamma, noise = (operation_key(key, 1 + spatial_dims + number) for number in range(4))
    if used(brightness, config.brightness_prob):
        image = image * between(brightness, 1, 0.75, 1.25)
    if used(contrast, config.contrast_prob):
        factor = between(contrast, 1, 0.75, 1.25)
        image = np.stack([np.clip((c - c.mean()) * factor + c.mean(), c.min(), c.max()) for c in image])
    if used(gamma, config.gamma_prob):
        exponent = between(gamma, 1, 0.7, 1.5)
        image = np.stack([((c - c.min()) / max(np.ptp(c), 1e-7)) ** exponent * np.ptp(c) + c.min() for c in image])
    if used(noise, config.noise_prob):
        strength = between(noise, 1, 0.0, 0.1)
        voxels = [normal(noise, 2, counter) for counter in range(image.size)]
        image = image + strength * np.array(voxels).reshape(image.shape)
    return image
