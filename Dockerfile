# Hasten on Debian; docs/how-to/containers.md says how to use it. The same steps are in hasten.def, for Apptainer.
#
#   docker build --tag hasten .                                    # CUDA: torch as pip finds it
#   docker build --tag hasten:cpu --build-arg TORCH_INDEX=URL .    # CPU: torch from PyTorch's index of CPU builds
FROM debian:bookworm-slim

# An index that pip asks for torch too, as PyTorch's own of CPU builds; empty: none.
ARG TORCH_INDEX=""
# Extras of Hasten's, as in "[itk,export]"; empty: none.
ARG EXTRAS=""

# Triton and torch.compile need the compiler and Python's headers at run time.
RUN apt-get update && \
    apt-get install --yes --no-install-recommends ca-certificates g++ python3 python3-dev python3-venv && \
    rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/hasten
ENV PATH=/opt/hasten/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# torch alone and first: it is the largest part and changes least.
COPY constraints.txt /opt/hasten/source/
RUN PIP_EXTRA_INDEX_URL="$TORCH_INDEX" pip install --no-cache-dir --constraint /opt/hasten/source/constraints.txt torch
COPY pyproject.toml README.md LICENSE /opt/hasten/source/
COPY src /opt/hasten/source/src
RUN pip install --no-cache-dir --constraint /opt/hasten/source/constraints.txt "/opt/hasten/source$EXTRAS" && \
    rm -rf /opt/hasten/source

# Compiled for every processor of this architecture; runs read them there, whatever lies in the cache folder.
RUN HASTEN_CACHE=/opt/hasten hasten warm
ENV HASTEN_KERNELS=/opt/hasten/kernels

# All that is written besides runs: prepared cases, and what is compiled later. Anybody may write there, so that
# `docker run --user` with any number works.
ENV HASTEN_CACHE=/cache TRITON_CACHE_DIR=/cache/triton TORCHINDUCTOR_CACHE_DIR=/cache/inductor MPLCONFIGDIR=/cache/matplotlib
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --uid 1000 --create-home hasten && mkdir --mode 1777 /cache && mkdir --mode 1777 /work
VOLUME /cache
USER hasten
WORKDIR /work
ENTRYPOINT ["hasten"]
CMD ["--help"]
