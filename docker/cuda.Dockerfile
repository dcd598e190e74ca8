# Tried on 2026-11-27 without a container runtime and without a GPU: each line ran in a chroot with Debian 12 and its Python 3.11
# in place of the base image. There, `import isthmus.torch` compiled the extension for PyTorch 2.15.0+cu132, with Python's
# headers, which the base image contains. The base image itself has not been used.
# Isthmus for NVIDIA devices with PyTorch and NCCL, from the release wheel that scripts/wheel writes to out/wheel:
#   docker build -f docker/cuda.Dockerfile -t isthmus-cuda out/wheel
#   docker run --rm --gpus all --ipc=host --cap-add=SYS_PTRACE isthmus-cuda isthmus doctor
# The driver comes from the host through the NVIDIA Container Toolkit, and PyTorch's wheel contains CUDA and NCCL. The
# compiler is only for versions of PyTorch that the wheel has no extension for.
FROM python:3.12-slim-bookworm
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY isthmus-*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/isthmus-*.whl)[torch]" && rm /tmp/isthmus-*.whl
CMD ["isthmus", "info"]
