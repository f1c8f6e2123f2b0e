# What a fresh machine needs: python3 (3.11 or newer), make and git. Everything else goes into .venv, with the
# versions in constraints.txt. `make help` lists the targets.

PYTHON ?= python3
TESTS ?= tests
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
# Stamps: installed after the last change of what decides the versions. `demo` and `data` need no development tools.
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo web browser test slow notebooks proofs faults supply lint format docs data held-out pictures flags clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo "make demo     turn the bundled photo pair into a slow-motion clip, out/demo.mp4"
	@echo "make web      serve a page in the browser: FILM, control plugins and REVEAL, a tab each"
	@echo "make browser  make a static page that draws pictures in the browser, out/browser (needs npm)"
	@echo "make test     run the quick tests (TESTS=tests/film PYTEST_ARGS=-x to choose)"
	@echo "make slow     run the tests that take long: training steps, several processes, browsers, the README's commands"
	@echo "make notebooks  run the notebooks"
	@echo "make proofs   run the tests that train for minutes: a memory is learned, a control steers a base"
	@echo "make faults   read ten thousand damaged files with each reader, kill writers, run for long, and print what came of it (hours)"
	@echo "make supply   check the packages: licences, versions that fit together (pip check); hashes into out/constraints-hashes.txt"
	@echo "make lint     ruff, pyright and the import contract; make format repairs what ruff can"
	@echo "make docs     write the pages of docs/ as a site, site/index.html"
	@echo "make data     download the training film (90 MB), cut its triplets into data/; VGG-16 and LPIPS for losses and scores (130 MB); photographs (191 MB, needs apt-get)"
	@echo "make held-out download the film, clips (132 MB, needs apt-get) and LPIPS, and cut the sets that film weights are judged by into data/held_out (379 MB)"
	@echo "make pictures download emoji, clip art and stamps (416 MB) and make captioned pictures of them in data/ (needs npm and apt-get)"
	@echo "make flags    make the table of countries and the sheet of flags anew in data/ (7 MB, needs npm); both are in the package already"
	@echo "make clean    remove .venv, the demo clip, caches and build folders"
	@echo "PYTHON=python3.12 chooses the interpreter that .venv is made with"

demo: $(BASE)
	@mkdir -p out
	$(BIN)/film examples/cup_0.jpg examples/cup_1.jpg -o out/demo.mp4 --times 5 --sheet out/demo.png --overwrite
	@echo "The clip is out/demo.mp4, some of its frames are in out/demo.png"

web: $(BASE)
	@$(INSTALL) -e ".[demo]"
	$(BIN)/python examples/web.py

browser: $(BASE)
	@$(INSTALL) -e ".[export]"
	$(BIN)/python examples/browser/make.py -o out/browser

test: $(DEV)
	$(BIN)/python -m pytest -m "not slow and not long" $(PYTEST_ARGS) $(TESTS)

slow: $(DEV)
	$(BIN)/python -m pytest -m "long and not slow" $(PYTEST_ARGS) $(TESTS)
	$(BIN)/python -m pytest -m "slow and not proof" $(PYTEST_ARGS) $(TESTS)

# One by one: kernels that start at once may pick the same port.
notebooks: $(DEV)
	$(BIN)/python -m pytest --nbmake $(PYTEST_ARGS) -n 0 notebooks

proofs: $(DEV)
	$(BIN)/python -m pytest -m proof $(PYTEST_ARGS) $(TESTS)

faults: $(DEV)
	$(BIN)/python tests/faults/mutations.py --count 10000
	$(BIN)/python tests/faults/kills.py --count 50
	$(BIN)/python tests/faults/kills.py --count 50 --writers 8
	$(BIN)/python tests/faults/endurance.py

supply: $(BASE)
	@mkdir -p out
	$(BIN)/python .ci/supply.py licences
	$(BIN)/python -m pip check
	$(BIN)/python .ci/supply.py hashes -o out/constraints-hashes.txt

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(BASE)
	@$(INSTALL) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is site/index.html"

# The photographs come last: who has no apt-get gets all the rest.
data: data/film_triplets data/vgg16.safetensors data/lpips_alex.safetensors data/photographs

data/bbb.mp4: | $(BASE)
	@$(INSTALL) -e ".[data]"
	$(BIN)/python -m recipes.film_small.fetch_film

data/vgg16.safetensors: | $(BASE)
	@$(INSTALL) -e ".[vgg]"
	$(BIN)/python -m recipes.downloads.vgg

data/lpips_alex.safetensors: | $(BASE)
	$(BIN)/python -m recipes.downloads.lpips

data/photographs: | $(BASE)
	$(BIN)/python -m recipes.film_small.photographs

held-out: data/held_out data/lpips_alex.safetensors

data/footage: | $(BASE)
	$(BIN)/python -m recipes.film_small.footage

data/held_out: | data/bbb.mp4 data/footage
	$(BIN)/python -m recipes.film_small.held_out

pictures: data/captioned64 data/efficientnet_lite0.safetensors

data/captioned64: | $(BASE)
	@$(INSTALL) -e ".[pictures]"
	$(BIN)/python -m recipes.captioned_pictures data/captioned64

data/efficientnet_lite0.safetensors: | $(BASE)
	$(BIN)/python -m recipes.downloads.efficientnet

flags: data/countries

data/countries: | $(BASE)
	@$(INSTALL) -e ".[pictures]"
	$(BIN)/python -m recipes.countries.fetch data/countries

data/film_triplets: | data/bbb.mp4
	$(BIN)/python -m film.data.cutting --video data/bbb.mp4

# pip is the last thing that venv installs, so a half-made .venv is completed.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
		"Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing):" \
		"install one and say which, as in: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing the packages that the program needs (some minutes the first time)"
	@$(INSTALL) -e .
	@touch $@

$(DEV): $(BASE)
	@echo "Installing the development tools (some minutes the first time)"
	@$(INSTALL) -e ".[dev]"
	@touch $@

# Only what the rules above, the tests and the tools they start have made; data/ and runs/ stay.
clean:
	rm -f out/demo.mp4 out/demo.png
	-@rmdir out 2>/dev/null || true
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .cache/jax build site film_plugins_reveal.egg-info
	-@rmdir .cache 2>/dev/null || true
	@if [ -e $(BASE) ]; then echo rm -rf $(VENV); rm -rf $(VENV); fi
