# The server of `apac serve`: docker build -t apac . && docker run -v "$PWD/token:/token:ro" -p 8000:8000 apac mnist-cnn
FROM python:3.12-slim

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[serve,fast]' \
    && useradd --create-home --uid 1000 apac
USER 1000
# Compiled kernels are cached in a folder that this user may write to.
ENV NUMBA_CACHE_DIR=/tmp/numba OMP_WAIT_POLICY=PASSIVE

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["apac", "serve", "--host", "0.0.0.0", "--token-file", "/token"]
CMD ["mnist-cnn", "cifar10-cnn"]
