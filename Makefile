# make run      serve the page          make run ARGS="--host 0.0.0.0 --port 8000"
# make test     every test              make test ARGS="-k heatmap"
# make bench    every measurement       make lint     style
#
# The first use of each makes .venv and installs what it needs; later uses install nothing.
# PYTHON=python3.12 chooses another Python (3.10 to 3.13).

PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test bench lint

run: .venv/installed
	$(BIN)/python app.py $(ARGS)

# Two files at a time: many tests wait for a browser or another process.
test: .venv/installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

bench: .venv/installed-dev
	@for file in bench/*.py; do $(BIN)/python -m bench.$$(basename $$file .py) $(ARGS) || exit 1; done

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit("hooklab needs Python 3.10 to 3.13, and \
	$(PYTHON) is " + sys.version.split()[0] + ": make $(MAKECMDGOALS) PYTHON=python3.12 takes another one")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -r requirements.txt
	@touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(BIN)/python -m pip install -r requirements-dev.txt
	@command -v chromium || $(BIN)/playwright install $$([ "$$(id -u)" != 0 ] || echo --with-deps) chromium
	@touch $@
