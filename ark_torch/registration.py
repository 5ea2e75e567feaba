"""What torch loads for `backend="ark"` (the entry point in pyproject.toml).

torch registers what an entry point gives and refuses a name that is taken: of two threads that ask for the backend for
the first time at once, the second would fail with "duplicate name". A module is loaded once, however many threads wait
for it, so this one registers the backend itself and gives torch nothing to register."""

from ark_torch._compat import backend_functions
from ark_torch.backend import ark

backend_functions.setdefault("ark", ark)
nothing = None
