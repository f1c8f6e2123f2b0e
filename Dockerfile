# The three commands in an image, for CPU (the default) or NVIDIA GPUs. Not built in CI.
#   docker build -t film-plugins-reveal .                          CPU
#   docker build -t film-plugins-reveal --build-arg EXTRAS=demo,cuda13 .   GPU; run it with --gpus all
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" film-plugins-reveal film a.jpg b.jpg
#   docker run --rm -p 127.0.0.1:7860:7860 film-plugins-reveal python /project/examples/web.py --host 0.0.0.0
FROM python:3.11-slim

ARG EXTRAS=demo
WORKDIR /project
# The packages first: they are installed again only where these files change.
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY .ci/wheel_backend.py .ci/
RUN mkdir film plugins reveal common configs \
 && touch train.py eval.py film/__init__.py plugins/__init__.py reveal/__init__.py common/__init__.py configs/__init__.py \
 && pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"
COPY . .
RUN pip install --no-cache-dir --no-deps -e .

# Compiled programs and downloads are kept in /cache: give it a volume to keep them between runs.
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
RUN useradd --create-home user && mkdir -m 1777 /cache /data
USER user
WORKDIR /data
VOLUME /cache
CMD ["film", "--help"]
