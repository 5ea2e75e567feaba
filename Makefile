# make demo: build and run the demonstration.  make test: build and run every test (those of the GPU where there is one).
# The running python3 is used as it is when it has torch 2.11-2.13; otherwise .venv is made with the pins of requirements.txt.
.PHONY: demo test setup python

PY = "$$(cat build/python)"
RUN = PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PY)

demo: setup
	$(RUN) examples/demo.py

test: setup
	$(RUN) -m pytest -q tests

setup:
	@./configure

# Prints the interpreter that the other targets use.
python: setup
	@cat build/python
