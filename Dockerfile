# One image for the platform and for the demonstration's agents: they differ in the command alone.

# Every locked package is fetched and checked against its hash here, build tools included; ...
FROM python:3.13-slim AS wheels
WORKDIR /src
COPY requirements.lock ./
RUN pip wheel --no-cache-dir --no-deps --require-hashes --wheel-dir /wheels -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY reach reach
COPY actors actors
RUN pip install --no-index --find-links /wheels hatchling \
    && pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels .

# ... only what runs is installed, from those files and without the network.
FROM python:3.13-slim
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "agent-reach[demo]" \
    && useradd --uid 10001 --create-home reach \
    && install -d -o reach -g reach -m 0700 /state
WORKDIR /app
COPY examples examples
USER reach
# The keys, the NATS server's data and its log. Keep this volume private: who can write here is the platform.
VOLUME /state
ENV REACH_HOME=/state PYTHONUNBUFFERED=1
ENTRYPOINT ["reach"]
CMD ["--help"]
