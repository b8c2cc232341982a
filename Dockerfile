# docker build -t hydrant .
# docker run --gpus all --shm-size=8g --user "$(id -u):$(id -g)" -v "$PWD:/workspace" hydrant train optimizer=adamw scheduler=cosine
# Data workers send batches through /dev/shm, of which Docker gives 64 MiB without --shm-size.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04

# A compiler and Python's headers are for torch.compile; torch brings the CUDA libraries itself.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv
ENV PATH=$VIRTUAL_ENV/bin:$PATH PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/hydrant

# The dependencies first: they change less often than the code.
COPY constraints.txt pyproject.toml ./
RUN python3 -m venv "$VIRTUAL_ENV" \
    && pip install --constraint constraints.txt uv \
    && uv pip install --constraint constraints.txt --requirements pyproject.toml --extra onnx
COPY LICENSE README.md hatch_build.py ./
COPY conf conf
COPY src src
RUN uv pip install --constraint constraints.txt --no-deps .

# Runs land in /workspace. HOME is for caches, whichever user the container runs as.
ENV HOME=/home/hydrant
RUN useradd --create-home --uid 10001 hydrant \
    && chmod 777 "$HOME" \
    && install --directory --owner hydrant /workspace
USER 10001
WORKDIR /workspace
ENTRYPOINT ["hydrant"]
CMD ["--help"]
