# ctworker in a container.
#
#   docker build -t ctworker .                                   CPU
#   docker build -t ctworker:cuda13 --target cuda13 .            NVIDIA GPUs (compiles for all architectures: 12 minutes of processor time)
#
#   docker run --rm -v DIR:/model:ro -v "$PWD:/data" ctworker \
#     lm_eval --model ctworker --model_args pretrained=/model --tasks wikitext --output_path results
#   docker run --rm --gpus all ... ctworker:cuda13 ...

FROM debian:12 AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends \
    build-essential ca-certificates cmake debian-archive-keyring git python3-venv
COPY . /src
RUN /src/tests/tools/wheel /dist

# The same headers and libraries of Debian 11, which the stage above has left in build/manylinux.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS wheel-cuda13
RUN apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates cmake git python3-venv
COPY --from=wheel /src /src
RUN /src/tests/tools/wheel --cuda /dist

FROM debian:13-slim AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /usr/local/ctworker && useradd -m -d /data ctworker
COPY --from=wheel /dist /tmp/dist
RUN for wheel in /tmp/dist/ctworker-*.whl; do /usr/local/ctworker/bin/pip install --no-cache-dir "$wheel[sweep,ppl]" || exit 1; done
ENV PATH=/usr/local/ctworker/bin:$PATH
USER ctworker
WORKDIR /data
CMD ["ctworker", "--help"]

# The driver comes from the host (--gpus); cuBLASLt from the package nvidia-cublas.
FROM cpu AS cuda13
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=wheel-cuda13 /dist /tmp/dist
USER root
RUN /usr/local/ctworker/bin/pip install --no-cache-dir /tmp/dist/ctworker_cuda13-*.whl
USER ctworker

# The default
FROM cpu
