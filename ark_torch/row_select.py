"""How far the nearest elements of a row go: `ark::select_by_count` and `ark::select_by_mass`; and a draw from them,
`ark::draw_by_mass`.

select_by_count(distances f32 [R, N], count int64 [R]) -> int64 [R]
  the largest number of steps below 2**28 that fewer than `count` elements of the row are below
select_by_mass(distances f32 [R, N], share f32 [R]) -> int64 [R]
  the largest one such that the elements that are not below it have more than `share` of the row's sum of
  exp(-distance). A plan finds it with sums that are off by at most 2**-15 of the row's: it takes each element in units
  of 2**-16 of one that is as near as its 1/16 of distance begins, at least one unit, and nothing of what is 88 away
draw_by_mass(values f32 [R, N], noise f32 [R, N], share f32 [R]) -> int64 [R], f32 [R]
  where the largest value + noise is of those whose distance to the row's largest value is at most what select_by_mass
  finds, and that sum. What is 64 away or farther has no mass here and is not drawn. Noise is finite; a share below 0
  or NaN is 0. In a row that has NaN, or whose largest value is infinite: the first such value
0 where there is none. NaN is as far as can be, and has no mass. `steps` counts distances; tokens within a step of each
other are alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 2.0**22  # to a distance of 1
_BITS, _BITS_A_PASS = 28, 4
_FAR = 2.0**_BITS - 16  # the largest float32 below 2**_BITS

_library = torch.library.Library("ark", "FRAGMENT")
_library.define("select_by_count(Tensor distances, Tensor count) -> Tensor")
_library.define("select_by_mass(Tensor distances, Tensor share) -> Tensor")
_library.define("draw_by_mass(Tensor values, Tensor noise, Tensor share) -> (Tensor, Tensor)")


def steps(distances: Tensor) -> Tensor:
    """int64, as many: float32 distances in whole steps of 2**-22, what is 64 or farther as the last one."""
    return (distances * _STEPS).clamp(max=_FAR).to(torch.int64)


def _farthest(found: Tensor, fits) -> Tensor:
    """[R]: the largest number that fits, four bits a pass. `fits` tells it of numbers [R, 15, 1]; 0 fits, and what is
    below one that does."""
    ways = torch.arange(1, 1 << _BITS_A_PASS, device=found.device)
    for shift in reversed(range(0, _BITS, _BITS_A_PASS)):
        asked = found[:, None] + (ways << shift)
        found = found + (fits(asked[:, :, None]).sum(-1) << shift)
    return found


def _check(distances: Tensor, bound: Tensor, dtype: torch.dtype) -> None:
    if distances.dtype != torch.float32 or distances.dim() != 2:
        raise TypeError(f"distances: {distances.dtype} of {distances.dim()} dimensions, expected torch.float32 of 2")
    if bound.dtype != dtype or bound.shape != distances.shape[:1]:
        wanted = f"{dtype} {list(distances.shape[:1])}"
        raise TypeError(f"a bound for each row: {bound.dtype} {list(bound.shape)}, expected {wanted}")


def _steps_of_all(distances: Tensor) -> Tensor:
    return steps(distances.nan_to_num(nan=torch.inf, posinf=torch.inf))


def _by_count(distances: Tensor, count: Tensor) -> Tensor:
    _check(distances, count, torch.int64)
    of_elements = _steps_of_all(distances)[:, None]
    return _farthest(torch.zeros_like(count), lambda asked: (of_elements < asked).sum(-1) < count[:, None])


def _by_mass(distances: Tensor, share: Tensor) -> Tensor:
    _check(distances, share, torch.float32)
    of_elements, weights = _steps_of_all(distances)[:, None], torch.exp(-distances).nan_to_num(0.0)[:, None]
    bound = share[:, None] * weights.sum(-1)
    found = torch.zeros_like(share, dtype=torch.int64)
    return _farthest(found, lambda asked: weights.where(of_elements >= asked, 0.0).sum(-1) > bound)


def _draw(values: Tensor, noise: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    _check_draw(values, noise, share)
    top = values.amax(-1, keepdim=True)
    distances = top - values
    of_elements = steps(distances)
    is_near = of_elements < int(_FAR)  # beside a float it would be compared in torch's default type
    near = distances.where(is_near, torch.inf)
    last = _by_mass(near, share.nan_to_num(0.0, posinf=torch.inf).clamp(min=0))[:, None]
    noisy = torch.where((of_elements <= last) & is_near, values + noise, -torch.inf)
    best, token = noisy.where(top.isfinite(), values).max(-1)
    return token, best


def _check_draw(values: Tensor, noise: Tensor, share: Tensor) -> None:
    _check(values, share, torch.float32)
    if noise.dtype != torch.float32 or noise.shape != values.shape:
        wanted = f"torch.float32 {list(values.shape)}"
        raise TypeError(f"noise for each element: {noise.dtype} {list(noise.shape)}, expected {wanted}")


for _device in ("CPU", "CUDA"):
    _library.impl("select_by_count", _by_count, _device)
    _library.impl("select_by_mass", _by_mass, _device)
    _library.impl("draw_by_mass", _draw, _device)


@torch.library.register_fake("ark::select_by_count", lib=_library)
def _count_fake(distances: Tensor, count: Tensor) -> Tensor:
    _check(distances, count, torch.int64)
    return count.new_empty(count.shape)


@torch.library.register_fake("ark::select_by_mass", lib=_library)
def _mass_fake(distances: Tensor, share: Tensor) -> Tensor:
    _check(distances, share, torch.float32)
    return share.new_empty(share.shape, dtype=torch.int64)


@torch.library.register_fake("ark::draw_by_mass", lib=_library)
def _draw_fake(values: Tensor, noise: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    _check_draw(values, noise, share)
    return share.new_empty(share.shape, dtype=torch.int64), share.new_empty(share.shape)


__all__ = ["steps"]
