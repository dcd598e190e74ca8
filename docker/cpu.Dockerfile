# Tried on 2026-11-27 without a container runtime: each line ran in a chroot with Debian 12 and its Python 3.11 in place of the
# base image. There, `isthmus doctor` reported no failure, but `isthmus run` did not find the mpiexec that pip had installed. That
# is fixed, and was not tried again. The base image itself has not been used.
# Isthmus for CPUs with MPICH, from the release wheel that scripts/wheel writes to out/wheel:
#   docker build -f docker/cpu.Dockerfile -t isthmus out/wheel
#   docker run --rm --shm-size=1g --cap-add=SYS_PTRACE isthmus isthmus doctor
# MPI uses /dev/shm. SYS_PTRACE allows ranks to copy from each other's memory; without it, the data is staged.
FROM python:3.12-slim-bookworm
COPY isthmus-*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/isthmus-*.whl)[mpi]" && rm /tmp/isthmus-*.whl
CMD ["isthmus", "info"]
