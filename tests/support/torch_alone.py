"""What `import torch, ark_torch` brings by itself, where this is imported before all else."""

import sys

import torch  # noqa: F401

import ark_torch  # noqa: F401

MODULES = frozenset(sys.modules)
