"""An evaluator of the JSON form of ir::Graph in plain torch, node by node: the meaning of the schema
(docs/GRAPH_JSON.md) and the oracle of the
lowering. It has the interface of `_C.CompiledGraph`, so a whole compiled model can run on it."""

from __future__ import annotations

import json
import math

import numpy as np
import torch

from ark_torch.attention import attention_backward_math, attention_math
from ark_torch.graph_json import DTYPE_NAMES, compute_type

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

UNARY = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "is_nan": torch.isnan,
    "is_inf": torch.isinf,
    "logical_not": torch.logical_not,
    "bit_not": torch.bitwise_not,
    "relu": torch.relu,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erfc": torch.erfc,
    "lgamma": torch.lgamma,
}
BINARY = {
    "check_index": lambda index, size: check_index(index, size),
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "atan2": torch.atan2,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
REDUCTIONS = {
    "sum": lambda x, dims, keep: x.sum(dims, keepdim=keep),
    "max": lambda x, dims, keep: x.amax(dims, keepdim=keep),
    "min": lambda x, dims, keep: x.amin(dims, keepdim=keep),
    "any": lambda x, dims, keep: x.any(dims, keepdim=keep),
    "all": lambda x, dims, keep: x.all(dims, keepdim=keep),
}


def check_index(index: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    if bool(((index < 0) | (index >= size)).any()):
        raise ValueError(f"an index of {index.tolist()} is out of range for size {size.tolist()}")
    return index


class ReferenceGraph:
    """CompiledGraph's twin. Counts its runs; checks its arguments as strictly."""

    def __init__(self, text: str, target: str = "host", device_index: int = 0, options: dict | None = None):
        self.graph = json.loads(text)
        self.text, self.target, self.options, self.runs = text, target, options, 0

    def prepare(self, symbols) -> None:
        self._symbols(list(symbols))

    def stats(self) -> dict:
        return {
            "name": self.graph["name"],
            "num_ops": len(self.graph["nodes"]),
            "tasks": {},
            "bytes": 0,
            "flops": 0,
            "floor_ms": 0.0,
            "predicted_ms": 0.0,
        }

    def _symbols(self, numbers: list) -> None:
        if len(numbers) != len(self.graph["symbols"]) or not all(type(n) is int for n in numbers):
            raise ValueError(f"symbols {numbers}, expected {self.graph['symbols']}")
        self._exprs = []
        for e in self.graph["exprs"]:
            self._exprs.append(_expr(e, numbers, self._exprs))

    def _size(self, size) -> int:
        return self._exprs[size["expr"]] if isinstance(size, dict) else size

    def _shape(self, value) -> list[int]:
        return [self._size(s) for s in value["sizes"]]

    def _strides(self, value) -> list[int]:
        return [self._size(s) for s in value["strides"]]

    def __call__(self, inputs: list) -> list:
        graph = self.graph
        count = len(graph["inputs"])
        if len(inputs) != count + len(graph["symbols"]):
            raise ValueError(f"{len(inputs)} arguments, expected {count} tensors and {len(graph['symbols'])} symbols")
        self._symbols(inputs[count:])
        self.runs += 1
        env: dict[int, torch.Tensor] = {}
        for number, tensor in zip(graph["inputs"], inputs):
            self._check_input(graph["values"][number], tensor)
            env[number] = tensor.detach()
        self.device = inputs[0].device if count else torch.device("cpu")
        for node in graph["nodes"]:
            self._run(node, env)
        return [env[i] for i in graph["outputs"]]

    def _check_input(self, value, tensor) -> None:
        want = (DTYPES[value["dtype"]], self._shape(value), self._strides(value))
        same = [a for a, s in zip(tensor.stride(), want[1]) if s > 1] == [b for b, s in zip(want[2], want[1]) if s > 1]
        if tensor.dtype != want[0] or list(tensor.shape) != want[1] or not same:
            raise ValueError(f"{value['name']}: {tensor.dtype} {list(tensor.shape)} {tensor.stride()}, expected {want}")

    def _run(self, node, env) -> None:
        inputs = [env[i] for i in node["inputs"]]
        outputs = [self.graph["values"][i] for i in node["outputs"]]
        try:
            if node["op"] in ("view", "copy_to"):
                results = [self._view(node, outputs[0], inputs, env)]
            else:
                computed = getattr(self, "_" + node["op"])(node["attrs"], inputs, outputs)
                computed = computed if isinstance(computed, tuple) else (computed,)
                results = [self._store(value, result) for value, result in zip(outputs, computed)]
        except Exception as error:
            raise RuntimeError(f"{node['name']} ({node['op']} {node['attrs']}): {error}") from error
        env.update(zip(node["outputs"], results))

    def _store(self, value, result: torch.Tensor) -> torch.Tensor:
        out = torch.empty_strided(
            self._shape(value), self._strides(value), dtype=DTYPES[value["dtype"]], device=self.device
        )
        assert tuple(torch.broadcast_shapes(result.shape, out.shape)) == tuple(out.shape), (result.shape, out.shape)
        return out.copy_(result)

    def _view(self, node, value, inputs, env) -> torch.Tensor:
        owner = env[value["base"]]
        offset = owner.storage_offset() + self._size(value.get("offset", 0))
        view = owner.as_strided(self._shape(value), self._strides(value), offset)
        if node["op"] == "copy_to":
            assert inputs[0].shape == inputs[1].shape == view.shape and inputs[1].dtype == view.dtype
            view.copy_(inputs[1].clone())
        return view

    def _pointwise(self, attrs, inputs, outputs):
        opcode, dtype = attrs["opcode"], DTYPES[outputs[0]["dtype"]]
        if opcode == "cast":
            return inputs[0].to(dtype)
        wide = [x.to(compute_type(x.dtype)) for x in inputs]
        if opcode == "where":
            assert wide[0].dtype == torch.bool and wide[1].dtype == wide[2].dtype == compute_type(dtype)
            return torch.where(*wide).to(dtype)
        if opcode == "fma":
            return torch.addcmul(wide[2], wide[0], wide[1]).to(dtype)
        if opcode in COMPARISONS:
            assert wide[0].dtype == wide[1].dtype and dtype == torch.bool
        elif opcode not in ("is_nan", "is_inf"):
            assert all(x.dtype == compute_type(dtype) for x in wide), (opcode, [x.dtype for x in wide], dtype)
        function = UNARY.get(opcode) or BINARY[opcode]
        return function(*wide).to(dtype)

    def _full(self, attrs, inputs, outputs):
        dtype = DTYPES[outputs[0]["dtype"]]
        number = float(attrs.get("imm", 0)) if dtype.is_floating_point else attrs.get("imm_int", 0)
        return torch.full(self._shape(outputs[0]), number, dtype=dtype)

    def _iota(self, attrs, inputs, outputs):
        start = attrs.get("imm_int", 0) + self._size(attrs.get("start", 0))
        return start + torch.arange(self._shape(outputs[0])[0], device=self.device) * attrs.get("step", 1)

    def _reduce(self, attrs, inputs, outputs):
        x, dims, keep, op = inputs[0], attrs["dims"], attrs["keepdim"], attrs["reduce"]
        x = x.to(compute_type(x.dtype))
        assert dims == sorted(dims)
        if op in REDUCTIONS:
            return REDUCTIONS[op](x, dims, keep)
        if op == "prod":
            for d in reversed(dims):
                x = x.prod(d, keepdim=keep)
            return x
        function = torch.argmax if op == "arg_max" else torch.argmin
        if len(dims) == 1:
            return function(x, dims[0], keepdim=keep)
        assert len(dims) == x.dim()
        return function(x).reshape(self._shape(outputs[0]))

    def _matmul(self, attrs, inputs, outputs):
        a, b = inputs
        assert a.dtype == b.dtype and a.dim() == b.dim()
        return torch.matmul(a.to(compute_type(a.dtype)), b.to(compute_type(b.dtype)))

    def _attention(self, attrs, inputs, outputs):
        mask = inputs[3] if attrs["has_mask"] else None
        return attention_math(*inputs[:3], mask, attrs["scale"], attrs["causal"])

    def _attention_backward(self, attrs, inputs, outputs):
        mask = inputs[6] if attrs["has_mask"] else None
        return attention_backward_math(*inputs[:6], mask, attrs["scale"], attrs["causal"])

    def _coordinates(self, mapping, indices, extents, shape) -> tuple:
        result = []
        for d, m in enumerate(mapping):
            if m >= 0:
                line = torch.arange(shape[m], device=self.device)
                result.append(line.reshape([-1 if i == m else 1 for i in range(len(shape))]))
            else:
                index = indices[~m].to(torch.int64)
                result.append(torch.where(index < 0, index + extents[d], index))
        return tuple(x.expand(shape) for x in result)

    def _index_load(self, attrs, inputs, outputs):
        src, *indices = inputs
        return src[self._coordinates(attrs["map"], indices, src.shape, self._shape(outputs[0]))]

    def _index_store(self, attrs, inputs, outputs):
        dst, src, *indices = inputs
        out = dst.clone()
        out[self._coordinates(attrs["map"], indices, dst.shape, list(src.shape))] = src
        return out

    def _scatter_sum(self, attrs, inputs, outputs):
        source, index = inputs
        rows, columns = self._shape(outputs[0])
        kept = (index >= 0) & (index < rows) & (index != attrs.get("imm_int", 0))
        wide = source.to(compute_type(source.dtype))
        return torch.zeros(rows, columns, dtype=wide.dtype, device=self.device).index_add(0, index[kept], wide[kept])

    def _row_select(self, attrs, inputs, outputs):
        distances, bound = inputs
        steps = (distances * 2.0**22).nan_to_num(nan=2.0**28).clamp(0, 2.0**28 - 16).to(torch.int64)
        ordered, places = steps.sort(-1)
        if bound.dtype == torch.int64:  # where the bound-th smallest is
            last = ordered.gather(-1, (bound[:, None] - 1).clamp(0, steps.size(-1) - 1))[:, 0]
            return last.where(bound > 0, 0).where(bound <= steps.size(-1), 2**28 - 1)
        weights = torch.exp(-distances.double()).gather(-1, places)
        behind = weights.flip(-1).cumsum(-1).flip(-1)  # of an element and all behind it
        fits = behind > bound[:, None].double() * weights.sum(-1, keepdim=True)
        return ordered.where(fits, 0).amax(-1)

    def _row_draw(self, attrs, inputs, outputs):
        values, noise, share = inputs
        top = values.amax(-1, keepdim=True)
        steps = ((top - values) * 2.0**22).clamp(0, 2.0**28 - 16).to(torch.int64)
        near = steps < 2**28 - 16
        share = share.nan_to_num(0.0, posinf=torch.inf).clamp(min=0)
        last = self._row_select(attrs, [(top - values).where(near, torch.inf), share], outputs)
        noisy = (values + noise).where((steps <= last[:, None]) & near, -torch.inf)
        best, token = noisy.where(top.isfinite(), values).max(-1)
        return token, best

    def _cat(self, attrs, inputs, outputs):
        assert len({x.dtype for x in inputs}) == 1
        return torch.cat(inputs, attrs["dim"])

    def _pad(self, attrs, inputs, outputs):
        ints = attrs["ints"]
        pairs = [ints[i : i + 2] for i in range(0, len(ints), 2)]
        return torch.nn.functional.pad(
            inputs[0], [p for pair in reversed(pairs) for p in pair], value=float(attrs["imm"])
        )

    def _rand(self, attrs, inputs, outputs):
        shape = self._shape(outputs[0])
        return philox_uniform(int(inputs[0]), int(inputs[1]), math.prod(shape)).reshape(shape).to(self.device)


def philox_uniform(seed: int, offset: int, count: int) -> torch.Tensor:
    """Elements 0 to count - 1 of a `rand` node, f32 in [0, 1): Philox4x32-10 (Salmon et al., SC 2011), key = seed,
    counter = (element / 4, offset); word element % 4, its upper 24 bits."""
    seed, offset, low = seed % 2**64, offset % 2**64, np.uint64(2**32 - 1)
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    c = [block & low, block >> np.uint64(32), *(np.full_like(block, x) for x in (offset % 2**32, offset >> 32))]
    key = [seed % 2**32, seed >> 32]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c = [high1 ^ c[1] ^ np.uint64(key[0]), p1 & low, high0 ^ c[3] ^ np.uint64(key[1]), p0 & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    words = np.stack(c, 1).reshape(-1)[:count]
    return torch.from_numpy(((words >> np.uint64(8)) * 2.0**-24).astype(np.float32))


def _expr(entry, symbols, exprs) -> int:
    op, args = entry["op"], [exprs[i] for i in entry.get("args", [])]
    if op in ("const", "sym"):
        return entry["value"] if op == "const" else symbols[entry["value"]]
    if op == "mul":
        product = 1
        for a in args:
            product *= a
        return product
    return {
        "add": sum,
        "floordiv": lambda a: a[0] // a[1],
        "mod": lambda a: a[0] % a[1],
        "min": min,
        "max": max,
        "neg": lambda a: -a[0],
    }[op](args)
