# Agent-Reach. `make help` lists what there is. Every target does its own set-up; nothing else is needed
# than make and Python 3.11 or newer.

# Written for any make since GNU make 3.81 (macOS still ships it) and any POSIX shell.
MAKEFLAGS += --no-print-directory

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
CODE  := $(wildcard reach actors examples bench tests conftest.py)
# What the user may add: make demo ARGS="my.pdf", make test ARGS="-k wire".
ARGS  ?=
QUICK := not soak and not chaos_long
# Most tests wait for somebody for longer than they compute (a server or a program that starts, a pause that is promised),
# so three processes have work for two cores. Files stay whole, and come in the order of conftest.py. Those with tight
# bounds on time follow, one after the other: the bounds are about the system, not about the machine.
TOGETHER := -n 3 --dist loadfile --no-loadscope-reorder

# The Python to build the virtual environment with; `make PYTHON=/path/to/python3.12 …` chooses another.
PYTHON ?=
NEEDED := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports bench soak chaos lock setup clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## Serve three agents, read a few hundred invoices, lose one agent on the way
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(READY) ## Run the tests and the documentation's examples
	@if [ -n '$(ARGS)' ]; then $(BIN)/pytest -m "$(QUICK)" $(ARGS); else \
	    $(BIN)/pytest -m "$(QUICK) and not alone" $(TOGETHER) && \
	    $(BIN)/pytest -m "$(QUICK) and alone" tests/chaos; fi

check: lint types imports test ## Everything that must pass: style, types, floors, documentation, tests

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy $(wildcard reach actors examples bench)

imports: $(READY)
	@$(BIN)/lint-imports

bench: $(READY) ## Measure, and compare with what is measured against
	@$(BIN)/python -m bench $(ARGS)

soak: $(READY) ## Run for long, to find leaks
	@$(BIN)/pytest -m soak --timeout 3600 $(ARGS)

chaos: $(READY) ## Inject failures, all of them, for long
	@$(BIN)/pytest -m chaos_long --timeout 3600 $(ARGS)

lock: $(READY) ## Choose the newest versions of every dependency, and write requirements.lock
	@$(BIN)/python -m piptools compile --quiet --upgrade --all-extras --strip-extras --allow-unsafe \
	    --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --output-file .venv/requirements.new pyproject.toml
	@{ echo '# Every dependency of every extra, with the hashes of its files. Written by `make lock`.'; \
	   cat .venv/requirements.new; } > requirements.lock
	@echo "$$(grep -c '==' requirements.lock) packages locked"

setup: $(READY) ## Only set up: .venv, with the locked dependencies and this project

clean: ## Remove everything that was made here, the virtual environment too
	@rm -rf $(VENV) dist build .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Done again only when the lock or the project file changed. A virtual environment whose Python is gone or
# too old is made anew; the stamp is written last, so that an interrupted set-up is taken up again.
$(READY): requirements.lock pyproject.toml
	@set -eu; \
	python=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python); do \
	    if "$$candidate" -c '$(NEEDED)' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    found=$$("$(or $(PYTHON),python3)" --version 2>&1) || found='none'; \
	    echo "Agent-Reach needs Python 3.11 or newer. Found: $$found." >&2; \
	    echo "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)," >&2; \
	    echo "or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	fi; \
	if ! $(BIN)/python -c '$(NEEDED)' 2>/dev/null || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
	        version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	        echo "Python $$version here cannot make virtual environments: its venv module is missing." >&2; \
	        echo "Debian, Ubuntu: apt install python$$version-venv; elsewhere, install a complete Python." >&2; \
	        exit 1; \
	    fi; \
	    echo "Setting up $(VENV) with $$("$$python" --version) …"; \
	    rm -rf $(VENV); \
	    "$$python" -m venv $(VENV); \
	fi; \
	echo "Installing the locked dependencies …"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	touch $@
