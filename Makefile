# make demo: build and run the demonstration.  make test: build and run every test (those of the GPU where there is one).
# The running python3 is used as it is when it has torch 2.11-2.13; otherwise .venv is made with the pins of requirements.txt.
.PHONY: demo test setup python

PY = "$$(cat build/python)"
# Tests run side by side (but those that take all GPUs) where pytest-xdist is there: on a GPU most of their time is the compiler's, one core each.
WORKERS = $$($(PY) -c 'import importlib.util as u, os; print(f"-n {min(12, len(os.sched_getaffinity(0)))} --dist worksteal" if u.find_spec("xdist") else "")')
RUN = PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PY)

demo: setup
	$(RUN) examples/demo.py

test: setup
	$(RUN) -m pytest -q $(WORKERS) --ignore=tests/multigpu tests
	$(RUN) -m pytest -q tests/multigpu

setup:
	@./configure

# Prints the interpreter that the other targets use.
python: setup
	@cat build/python
