# The two commands of the README: `make demo` and `make test`. Everything else is a step of them.
CARGO ?= cargo
PIPE = target/debug/pipe
TRAINER = target/debug/pipe-trainer

.PHONY: build optimised wheel hatchling release demo demo-gpu test test-all test-packages test-programs bench-programs test-docs test-storm test-kernels test-transformers storm install dist lint format clippy bench bench-ui bench-gpu e2e strangers libtorch minilm mlflow moto wandb nvrtc optuna optuna4 python clean

# Compiled fast, for the demo and the tests: the profile `dev` of Cargo.toml, in target/debug.
build: libtorch
	$(CARGO) build --workspace

# Optimised, for `make install`, `make wheel`, `make dist`, `make release` and the benchmarks, in target/release.
optimised: libtorch
	$(CARGO) build --release --workspace

# libtorch, from PyPI by name and hash, once. CUDA=1 with the libraries for cards, CUDA=0 without; by default with them where
# this machine has an NVIDIA driver.
CUDA ?= auto
libtorch:
	docker/fetch-libtorch target/libtorch --cuda $(CUDA)

# A small published model, from PyPI by name and hash, once. Tests that need it are skipped where it cannot be fetched.
minilm:
	-tests/fetch-minilm target/minilm

# A tracking server, a reader of event files and a client of the hub, from PyPI by name, once. Tests that need them are skipped where they cannot be fetched.
mlflow:
	-tests/fetch-packages tests/mlflow.txt target/mlflow "MLflow and TensorBoard (40 MB, once)"

# A server that speaks the protocol of S3, from PyPI by name, once. Tests that need it are skipped where it cannot be fetched.
moto:
	-tests/fetch-packages tests/moto.txt target/moto "moto (81 MB, once)"

# The program that uploads offline runs of Weights & Biases, from PyPI by name, once. Tests that need it are skipped where it cannot be fetched.
wandb:
	-tests/fetch-packages tests/wandb.txt target/wandb "wandb (26 MB, once)"

# The compiler of the kernels, in the version of docker/libtorch-cuda.txt, from PyPI by name and hash, once. Where it cannot be fetched the
# kernels are compiled for no card.
nvrtc:
	-mkdir -p target && grep '^nvidia-cuda-nvrtc=' docker/libtorch-cuda.txt > target/nvrtc.txt && \
	  tests/fetch-packages target/nvrtc.txt target/nvrtc "NVRTC (90 MB, once)"

# Optuna 5 with its dashboard, and Optuna 4 for the same other packages, from PyPI by name, once. Tests that need them are skipped where
# they cannot be fetched.
optuna:
	-tests/fetch-packages tests/optuna.txt target/optuna5 "Optuna 5 (71 MB, once)"

optuna4:
	-tests/fetch-packages tests/optuna4.txt target/optuna4 "Optuna 4 (3 MB, once)"

# torch for the CPU, the Trainer of transformers and Lightning, for tests with programs in Python, from PyPI by name, once. Tests that need them
# are skipped where they cannot be fetched.
python:
	-tests/fetch-packages tests/python.txt target/python "torch (1.3 GB, once)"
	-tests/fetch-packages tests/python-transformers.txt target/python-transformers "transformers (94 MB, once)"
	-tests/fetch-packages tests/python-package.txt target/python-package "Lightning (2 MB, once)"

# The demo shows the retry, so it ignores what the ledger knows from an earlier demo.
demo: build data/demo/train.jsonl
	$(PIPE) run pipelines/demo.yaml --ignore-ledger

# The same on a card, through an out-of-memory of CUDA.
demo-gpu: build data/demo/train.jsonl
	$(PIPE) run pipelines/demo-gpu.yaml --ignore-ledger

data/demo/train.jsonl: | build
	$(TRAINER) data recipes --rows 2000 --seed 7 --out data/demo

# The tests, the Docker ones included where a daemon answers (PIPE_REQUIRE_DOCKER=1: they must), some of them on Podman and Docker 26
# where tests/engines/daemon has installed them, the commands of the docs, a few storms, the attention kernels on the CPU, and each kernel
# compiled for some kind of card. What the tests need is fetched while they are compiled.
test: libtorch
	$(MAKE) --jobs 2 test-packages test-programs
	CARGO="$(CARGO)" tests/run-suites

# The thorough tests as well: every case on both engines, many kills, more cuts of a step, every kernel for every kind of card, Optuna 4,
# programs in Python.
test-all: libtorch
	$(MAKE) --jobs 4 test-packages optuna4 python test-programs
	PIPE_TEST_ALL=1 CARGO="$(CARGO)" tests/run-suites
	$(MAKE) strangers

# Data as strangers bring it, through init, check, run and predict. The packages that it is read from and written with come from PyPI by
# name, once.
strangers: build
	tests/fetch-packages tests/strangers.txt target/strangers "data of scikit-learn and vega_datasets, writers of Excel and Parquet (90 MB, once)"
	PYTHONPATH=target/strangers python3 tests/strangers.py --bin target/debug

test-packages: minilm mlflow moto wandb nvrtc optuna hatchling

# Without the jobs of make: cargo counts processors itself.
test-programs: libtorch
	MAKEFLAGS= $(CARGO) test --workspace --no-run

bench-programs: libtorch
	MAKEFLAGS= $(CARGO) build --workspace --benches

test-docs: build
	python3 docs/generate_reference.py --check
	PIPE_TEST_ALL=1 python3 tests/docs_commands.py --bin target/debug

test-storm: build
	python3 tests/storm.py --bin target/debug --short

test-kernels: nvrtc
	tests/cuda_on_cpu/run.sh
	tests/cuda_on_cpu/nvrtc.sh

# Exported models in the real transformers, which compute the same logits: before each release. torch and transformers come from
# PyPI by name, once; `make test` skips these tests where they are not there.
test-transformers: build
	tests/fetch-packages tests/transformers.txt target/transformers "torch and transformers (2.6 GB, once)"
	PIPE_REQUIRE_TRANSFORMERS=1 $(CARGO) test --workspace --test training -- export_loads_in_transformers

# Ten minutes of kills, full disks, damaged folders, cut sockets, a second user and hostile images, then a minute for each reader of
# foreign bytes. SEED=N repeats one.
SEED ?=
storm: build
	python3 tests/storm.py --bin target/debug --minutes 10 $(if $(SEED),--seed $(SEED))
	PIPE_FUZZ_SECONDS=60 $(if $(SEED),PIPE_FUZZ_SEED=$(SEED)) $(CARGO) test -p pipe-spec --test foreign_bytes

# Below PREFIX: programs, the libraries they load, completions, manual pages, pipelines. With CUDA=1 the libraries for cards.
PREFIX ?= /usr/local
install: optimised
	docker/install $(PREFIX)

# The same as one archive that runs on any x86-64 Linux with glibc 2.34 or newer, in target/dist.
dist: optimised
	docker/dist target/dist

# A wheel of under 20 MB, in target/dist: for any Python that has the torch of docker/libtorch.txt, or gets it from pip.
wheel: optimised hatchling
	docker/wheel target/dist

# The builder of the wheel, from PyPI by name, once. Tests of the wheel are skipped where it cannot be fetched.
hatchling:
	-tests/fetch-packages docker/hatchling.txt target/hatchling "hatchling (1 MB, once)"

# All files of a release, in target/dist/release.
release: hatchling
	$(MAKE) optimised CUDA=1
	docker/release target/dist/release

lint: format clippy

format:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

bench: build bench-ui
	$(CARGO) bench --quiet -p pipe --bench bench

# `pipe ui` beside TensorBoard and Aim, from PyPI by name, once.
bench-ui: build
	-test -x target/ui-peers/bin/aim || { python3 -m venv target/ui-peers && target/ui-peers/bin/pip install --quiet tensorboard==2.21.0 aim==3.29.1; }
	python3 tests/bench_ui.py --bin target/debug --peers target/ui-peers/bin/python

# On a machine with a CUDA card and a python3 that has torch and transformers.
bench-gpu: optimised
	python3 tests/bench_gpu.py all --trainer target/release/pipe-trainer

# Trainings from a file, beside those of transformers, on a card.
e2e: optimised
	python3 tests/bench_e2e.py --trainer target/release/pipe-trainer

clean:
	$(CARGO) clean
