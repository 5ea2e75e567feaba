# make demo: build and run the demonstration.  make test: build and run every test (those of the GPU where there is one).
# make test-fast: the tests that are not marked slow.
# The running python3 is used as it is when it has a torch that pyproject.toml names; otherwise .venv is made with the pins of requirements.txt.
.PHONY: demo test test-fast setup python

PY = "$$(cat build/python)"
# Tests run side by side (but those that take all GPUs) where pytest-xdist is there: on a GPU most of their time is the compiler's, one core each.
# One worker more than cores: tests of ranks start many processes that wait for each other, and leave a quarter of two cores idle.
WORKERS = $$($(PY) -c 'import importlib.util as u, os; print(f"-n {min(12, len(os.sched_getaffinity(0)) + 1)} --dist worksteal" if u.find_spec("xdist") else "")')
TWO_GPUS = $(PY) -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)'
RUN = PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PY)

demo: setup
	$(RUN) examples/demo.py

# Tests that take all GPUs come first and alone; without two GPUs they skip among the others, and one line says so.
test: setup
	@status=0; \
	if $(TWO_GPUS); then $(RUN) -m pytest -q tests/multigpu || status=1; alone="--ignore=tests/multigpu"; fi; \
	$(RUN) -m pytest -q $(WORKERS) $$alone tests || status=1; \
	[ $$status = 0 ] || echo "make test: some tests failed, see the summaries above"; \
	exit $$status

test-fast: setup
	$(RUN) -m pytest -q $(WORKERS) -m "not slow" --ignore=tests/multigpu tests

setup:
	@./configure

# Prints the interpreter that the other targets use.
python: setup
	@cat build/python
