// Loop kernels with one task family each, and the programs that their matmuls end in, written as codegen writes them.
#pragma once
#include "device/attention/backward.cuh"
#include "device/attention/decode.cuh"
#include "device/attention/forward.cuh"
#include "device/attention/mask_range.cuh"
#include "device/attention/simple.cuh"
#include "device/loop/outline.cuh"
#include "device/matmul/float.cuh"
#include "device/matmul/simple.cuh"
#include "device/matmul/tile.cuh"

namespace {
using namespace ark::device;

/// operand 0 = product
template <class T>
struct StoreProgram {
  static constexpr int kVector = 8, kNumOperands = 1;
  static constexpr bool kPairs = false;
  static constexpr u32 kLoads = 0, kStores = 1;
  template <int V>
  struct Inputs {};
  template <int V, class Context>
  static ARK_DEVICE void load(const Context&, const i32 (&)[3], Inputs<V>&) {}
  template <int V, class Roots, class Context>
  static ARK_DEVICE void run_loaded(const Context& c, const i32 (&x)[3], const Inputs<V>&, const Roots& roots) {
    float value[V];
    roots.template get<V>(0, 0, value);
    Vec<T, V> out;
    ARK_EACH out.v[i] = narrow<T>(value[i]);
    store_operand<V>(c, 0, x, out);
  }
};

/// operand 0 = product, in any type
template <class T, class Compute>
struct StoreSimpleProgram {
  static constexpr int kVector = 4;
  template <int V, class Roots>
  static ARK_DEVICE void run(const ProgramContext& c, const i32 (&x)[3], const Roots& roots) {
    Compute value[V];
    roots.template get<V>(0, 0, value);
    Vec<T, V> out;
    ARK_EACH out.v[i] = narrow<T>(value[i]);
    store_operand<V>(c, 0, x, out);
  }
};

/// operand 0 = gelu(product + operand 1) + operand 2, tanh form
template <class T>
struct BiasGeluResidualProgram {
  static constexpr int kVector = 8, kNumOperands = 3;
  static constexpr bool kPairs = false;
  static constexpr u32 kLoads = 6, kStores = 1;
  template <int V>
  struct Inputs {
    Vec<T, V> bias, residual;
  };
  template <int V, class Context>
  static ARK_DEVICE void load(const Context& c, const i32 (&x)[3], Inputs<V>& in) {
    load_operand<V>(c, 1, x, in.bias);
    load_operand<V>(c, 2, x, in.residual);
  }
  template <int V, class Roots, class Context>
  static ARK_DEVICE void run_loaded(const Context& c, const i32 (&x)[3], const Inputs<V>& in, const Roots& roots) {
    float value[V];
    roots.template get<V>(0, 0, value);
    Vec<T, V> out;
    ARK_EACH {
      const float t = value[i] + widen(in.bias.v[i]);
      const float g = 0.5f * t * (1.0f + op::tanh_fast(0.7978845608f * (t + 0.044715f * t * t * t)));
      out.v[i] = narrow<T>(g + widen(in.residual.v[i]));
    }
    store_operand<V>(c, 0, x, out);
  }
};

/// Rotary by pairs: operand 0 at n = product(n) * operand 1(n) + sign * product(n + sign * p), sign = + in the lower
/// half of a pair block.
template <class T>
struct PairProgram {
  static constexpr int kVector = 8, kNumOperands = 2;
  static constexpr bool kPairs = true;
  static constexpr u32 kLoads = 2, kStores = 1;
  template <int V>
  struct Inputs {
    Vec<T, V> factor;
  };
  template <int V, class Context>
  static ARK_DEVICE void load(const Context& c, const i32 (&x)[3], Inputs<V>& in) {
    load_operand<V>(c, 1, x, in.factor);
  }
  template <int V, class Roots, class Context>
  static ARK_DEVICE void run_loaded(const Context& c, const i32 (&x)[3], const Inputs<V>& in, const Roots& roots) {
    float value[V], up[V], down[V];
    roots.template get<V>(0, 0, value);
    roots.template get<V>(0, 1, up);
    roots.template get<V>(0, -1, down);
    const int p = c.task.record->params.matmul.pair_distance;
    Vec<T, V> out;
    ARK_EACH {
      const bool low = ((x[2] + i) / p & 1) == 0;
      out.v[i] = narrow<T>(value[i] * widen(in.factor.v[i]) + (low ? up[i] : -down[i]));
    }
    store_operand<V>(c, 0, x, out);
  }
};

/// A plan holds few variants of a main loop and few programs: so do these kernels (all at once spill).
template <unsigned kVariants>
struct StorePrograms {
  static constexpr u32 kMatmulVariants = kVariants;
  template <class F>
  static ARK_DEVICE void epilogue_tile(int program, F&& f) {
    if (program == 0)
      f(StoreProgram<bf16>{});
    else
      f(StoreProgram<f16>{});
  }
};
struct FusedPrograms {
  static constexpr u32 kMatmulVariants = 0x10011;  // bf16, both operands k-major; tiles of all forms
  template <class F>
  static ARK_DEVICE void epilogue_tile(int program, F&& f) {
    if (program == 2)
      f(BiasGeluResidualProgram<bf16>{});
    else
      f(PairProgram<bf16>{});
  }
};
/// A program of fp32 in one piece, as epilogues on the CUDA cores run it.
template <class Program>
struct Whole : Program {
  static constexpr int kVector = 4;
  template <int V, class Roots, class Context>
  static ARK_DEVICE void run(const Context& c, const i32 (&x)[3], const Roots& roots) {
    typename Program::template Inputs<V> in;
    Program::template load<V>(c, x, in);
    Program::template run_loaded<V>(c, x, in, roots);
  }
};
struct FloatPrograms {
  template <class F>
  static ARK_DEVICE void epilogue_float(int program, F&& f) {
    if (program == 2)
      f(Whole<BiasGeluResidualProgram<float>>{});
    else
      f(Whole<PairProgram<float>>{});
  }
};
/// A family in a function of its own.
template <class Family>
struct Called : Family {
  static ARK_DEVICE void consume(Consumer& c, const Task& t) { call<Family>(c, t); }
};

struct SimplePrograms {
  template <class F>
  static ARK_DEVICE void epilogue_simple(int dtype, F&& f) {
    switch (dtype) {
      case 5:
        return f(StoreSimpleProgram<i64, i64>{});
      case 6:
        return f(StoreSimpleProgram<f16, float>{});
      case 7:
        return f(StoreSimpleProgram<bf16, float>{});
      case 8:
        return f(StoreSimpleProgram<float, float>{});
      default:
        return f(StoreSimpleProgram<double, double>{});
    }
  }
};
template <unsigned kVariants>
struct AttentionPrograms {
  static constexpr u32 kAttentionVariants = kVariants;
};

template <u64 kForms>
struct SimpleAttentionPrograms {
  static constexpr u64 kSimpleAttention = kForms;
};

template <bool kHalf, int kDim, int kRows>
struct DecodePrograms {
  static constexpr bool kDecodeBF16 = !kHalf, kDecodeF16 = kHalf;
  static constexpr u32 kDecodeDims = ark::abi::decode_dim_bit(kDim);
  static constexpr bool kDecodeRows4 = kRows == 4, kDecodeRows16 = kRows == 16, kDecodeCache = true,
                        kDecodePlain = true, kDecodeQueries = true, kDecodeCausal = true, kDecodeAddedMasks = true,
                        kDecodePairs = true;
};

template <class Family, int kService, int kConsumers>
struct OneFamily {
  static constexpr int kServiceRegisters = kService, kConsumerRegisters = kConsumers;
  static ARK_DEVICE void load_immutable(Loader& l, const Task& t) {
    if constexpr (requires { Family::load_immutable(l, t); }) Family::load_immutable(l, t);
  }
  static ARK_DEVICE void load_dependent(Loader& l, const Task& t) {
    if constexpr (requires { Family::load_dependent(l, t); }) Family::load_dependent(l, t);
  }
  static ARK_DEVICE void consume(Consumer& c, const Task& t) { Family::consume(c, t); }
  static ARK_DEVICE void patch_maps(const Worker& worker, const u64* slots) {
    patch_tensor_maps(worker, slots, thread_index() & 31);
  }
  static ARK_DEVICE void acquire_maps(const Worker& worker) { acquire_tensor_maps(worker, thread_index() & 31); }
};

/// The same, consume() a function of its own.
template <class Family, int kService, int kConsumers>
struct CalledFamily : OneFamily<Family, kService, kConsumers> {
  static ARK_DEVICE void consume(Consumer& c, const Task& t) { call<Family>(c, t); }
};

template <class Tasks>
__global__ void __launch_bounds__(ark::abi::kThreads, 1)
    ark_loop(const __grid_constant__ ark::abi::LaunchParams<64> params) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run_loop<Tasks>(params, shared_memory);
}
}  // namespace
