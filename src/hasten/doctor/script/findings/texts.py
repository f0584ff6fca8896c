"""Names, titles and cures of findings in scripts that are the same wherever they are found."""

from __future__ import annotations

from hasten.doctor.finding import FindingText

COPIED_MAPS = FindingText(
    "host-metric",
    "score maps are copied to the host one after another in validation rounds",
    "compute the metric on the device (torchmetrics, monai.metrics), and copy only what is shown",
)
CUDNN_BENCHMARK_OFF = FindingText(
    "cudnn-benchmark-off",
    "cuDNN takes its algorithms by rules of thumb although the input's shape stays the same",
    "torch.backends.cudnn.benchmark = True",
)
DATA_PARALLEL = FindingText(
    "data-parallel",
    "DataParallel copies the network to every GPU in each step, and one process drives them all",
    "torchrun --nproc-per-node=N, with DistributedDataParallel and a DistributedSampler",
)
DETERMINISTIC = FindingText(
    "deterministic",
    "cuDNN is kept to deterministic algorithms, which also leaves its search for the fastest out",
    "torch.backends.cudnn.deterministic = False and benchmark = True, unless every run must repeat "
    "(MONAI: set_determinism(None); Lightning: deterministic=False)",
)
FILES_READ_AGAIN = FindingText(
    "uncached-items",
    "the same files are read and unpacked again and again",
    "read each once, and keep it in memory",
)
HEAVY_ITEMS = FindingText(
    "heavy-items",
    "the items cost so much work that no number of workers hides all of it",
    "cache what is the same each time, and make the random transforms cheaper or a batch at a time: "
    "hasten.compile_transforms(chain)",
)
HISTOGRAMS = FindingText(
    "histograms",
    "histograms of many tensors are made on the host, where the training waits for them",
    "make them every epoch, of a few layers, with torch.histc on the device",
)
HOST_METRIC = FindingText(
    "host-metric",
    "score maps are copied to the host and worked on there, while the network waits",
    "compute the metric on the device (torchmetrics, monai.metrics), and copy only what is shown",
)
LOOP_HEAVY = FindingText(
    "heavy-items",
    "making the data takes much of the time, and where there are few cores workers don't hide it",
    "keep what is the same each time, uncompressed, and transform a batch at a time with torch",
)
LOOP_LOADS = FindingText(
    "no-workers",
    "the training's own process prepares data at this line, and the network waits for it",
    "do it in the Dataset of a DataLoader(..., num_workers=2) or more",
)
METADATA_TENSOR = FindingText(
    "metadata-tensor",
    "the network and the loss run on tensors of a subclass, whose Python code sees every operation",
    "image.as_tensor() before the network (MONAI), or set_track_meta(False)",
)
NEEDLESS_FORWARD = FindingText(
    "needless-forward",
    "a network runs in every step, but nothing uses its outputs, not even the loss",
    "run it only in the steps whose loss has a weight for it",
)
NO_AUTOCAST = FindingText(
    "no-autocast",
    "forward and backward run in float32, where a GPU's tensor cores stay idle",
    'with torch.autocast("cuda", dtype=torch.bfloat16): around the forward and the loss',
)
PYTHON_LOOP = FindingText(
    "python-loop",
    "a loop of Python over tensors launches a small operation for each of them",
    "take them all at once: torch._foreach_lerp_ and the like, torch.nn.utils, or a stacked tensor",
)
SMALL_BATCH = FindingText(
    "small-batch",
    "the network sees one image at a time, which leaves most of a GPU idle",
    "a batch of several images (and the learning rate with it)",
)
SYNC_PLOT = FindingText(
    "sync-plot",
    "the training waits while figures are drawn",
    "draw less often, or copy the arrays and draw them in another process",
)
UNPINNED_MEMORY = FindingText(
    "unpinned-memory",
    "batches are copied to the GPU from pageable memory, and the host waits for each copy",
    "DataLoader(..., pin_memory=True), and batch.to(device, non_blocking=True)",
)
RECREATE = FindingText(
    "recreate",
    "the same tensor is made and sent to the device again and again",
    "make it once before the loop, on the device (register_buffer in a module)",
)
SYNC_COPY = FindingText(
    "sync-copy",
    "the batch lies in pinned memory, and the host waits for its copy all the same",
    "batch.to(device, non_blocking=True)",
)
UNPINNED_TENSORS = FindingText(
    "unpinned-memory",
    "tensors are sent to the GPU from pageable memory, and the host waits for it",
    "torch.from_numpy(array).pin_memory().to(device, non_blocking=True)",
)
