"""The claims, a file for each family."""

from benchmarks.guide.claim import Guidance
from benchmarks.guide.claims import caching, convolution, device, loading, parallel, pointwise, stepping

CLAIMS: tuple[Guidance, ...] = (
    *loading.CLAIMS,
    *caching.CLAIMS,
    *convolution.CLAIMS,
    *pointwise.CLAIMS,
    *stepping.CLAIMS,
    *device.CLAIMS,
    *parallel.CLAIMS,
)
