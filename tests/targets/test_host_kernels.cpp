// Every instruction set that this machine has gives what the plain one gives; the fitted functions are as exact as they
// say.
#include <algorithm>
#include <vector>

#include "support/test_host_util.h"
#include "targets/host/kernels/kernels.h"
#include "targets/host/tasks/gemm.h"

using namespace ark;
using namespace ark::test;
using namespace ark::targets::host;

namespace {

constexpr int64_t kN = 1003;  // no multiple of any vector

struct Block {
  std::vector<double> memory;  // aligned for every type
  explicit Block(int64_t bytes = kN * 8) : memory(bytes / 8 + 1) {}
  void* data() { return memory.data(); }
};

Block random_block(RegType type, unsigned seed) {
  Block block;
  std::mt19937 random(seed);
  const DType dtypes[] = {DType::kF32, DType::kF64, DType::kI64, DType::kBool};
  fill_random(block.data(), dtypes[static_cast<int>(type)], kN, random, 3);
  return block;
}

void expect_same(RegType type, Block& got, Block& wanted, const std::string& what) {
  for (int64_t i = 0; i < kN; ++i) {
    bool same = true;
    if (type == RegType::kF32) {
      const double a = static_cast<float*>(got.data())[i], b = static_cast<float*>(wanted.data())[i];
      same = close(a, b, 1e-6, 1e-6);
    } else if (type == RegType::kF64) {
      same = close(static_cast<double*>(got.data())[i], static_cast<double*>(wanted.data())[i], 1e-14, 1e-14);
    } else {
      const int bytes = reg_bytes(type);
      same = std::memcmp(static_cast<char*>(got.data()) + i * bytes, static_cast<char*>(wanted.data()) + i * bytes,
                         bytes) == 0;
    }
    expect(same, cat(what, " lane ", i));
    if (!same) return;
  }
}

void compare_elementwise(const Kernels& set, const Kernels& plain) {
  for (int t = 0; t < kNumRegTypes; ++t) {
    const auto type = static_cast<RegType>(t);
    Block a = random_block(type, 1), b = random_block(type, 2), c = random_block(type, 3),
          condition = random_block(RegType::kBool, 4);
    for (int o = 0; o < kNumOpcodes; ++o) {
      const auto op = static_cast<Opcode>(o);
      const auto what = [&] { return cat(set.isa, " ", name(op), " of type ", t); };
      const bool compares = op >= Opcode::kEq && op <= Opcode::kGe,
                 classifies = op == Opcode::kIsNan || op == Opcode::kIsInf;
      const RegType result = compares || classifies ? RegType::kBool : type;
      Block got, wanted;
      expect(!set.unary(op, type) == !plain.unary(op, type) && !set.binary(op, type) == !plain.binary(op, type),
             what() + " exists");
      if (const UnaryFn fn = set.unary(op, type)) {
        fn(got.data(), a.data(), kN);
        plain.unary(op, type)(wanted.data(), a.data(), kN);
      } else if (const BinaryFn fn = set.binary(op, type)) {
        fn(got.data(), a.data(), b.data(), kN);
        plain.binary(op, type)(wanted.data(), a.data(), b.data(), kN);
      } else if (const TernaryFn fn = op == Opcode::kRand ? nullptr : set.ternary(op, type)) {
        void* first = op == Opcode::kWhere ? condition.data() : a.data();
        fn(got.data(), first, b.data(), c.data(), kN);
        plain.ternary(op, type)(wanted.data(), first, b.data(), c.data(), kN);
      }
      expect_same(result, got, wanted, what());
    }
  }
}

void compare_memory(const Kernels& set, const Kernels& plain) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto type = reg_type(static_cast<DType>(d));
    std::mt19937 random(7);
    Block memory(3 * kN * 8), other(3 * kN * 8);
    fill_random(memory.data(), static_cast<DType>(d), 3 * kN, random);
    for (const int64_t stride : {0, 1, 3}) {
      Block got, wanted;
      set.load[d](got.data(), memory.data(), stride, kN);
      plain.load[d](wanted.data(), memory.data(), stride, kN);
      expect_same(type, got, wanted, cat(set.isa, " load of ", name(static_cast<DType>(d)), " stride ", stride));
      if (stride == 0) continue;
      Block back(3 * kN * 8), expected(3 * kN * 8);
      set.store[d](back.data(), got.data(), stride, kN);
      plain.store[d](expected.data(), got.data(), stride, kN);
      expect(std::memcmp(back.data(), expected.data(), 3 * kN * 8) == 0,
             cat(set.isa, " store of ", name(static_cast<DType>(d)), " stride ", stride));
    }
  }
}

template <class T>
void compare_gemm(const Kernels& set, DType dtype) {
  std::mt19937 random(3);
  for (const auto& [m, n, k] :
       {std::tuple{1, 1, 1}, std::tuple{13, 37, 400}, std::tuple{64, 130, 17}, std::tuple{3, 600, 9}}) {
    Block a(m * k * 8), b(n * k * 8);
    fill_random(a.data(), dtype, m * k, random);
    fill_random(b.data(), dtype, n * k, random);
    for (const bool transposed : {false, true}) {
      const MatrixView left{a.data(), dtype, transposed ? 1 : k, transposed ? m : 1},
          right{b.data(), dtype, transposed ? 1 : n, transposed ? k : 1};
      Scratch scratch;
      const int64_t ldc = gemm_row_length<T>(set, n);
      std::vector<T> c(gemm_rows<T>(set, m) * ldc), few(c.size());
      gemm<T>(set, scratch, left, right, m, n, k, c.data());
      gemm_few_rows<T>(set, scratch, left, right, m, n, k, few.data());
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double wanted = 0;
          for (int64_t p = 0; p < k; ++p) {
            const Value x = read_value(a.data(), dtype, i * left.row_stride + p * left.column_stride),
                        y = read_value(b.data(), dtype, p * right.row_stride + j * right.column_stride);
            wanted += is_float(dtype) ? x.f * y.f : double(x.i * y.i);
          }
          for (const std::vector<T>* got : {&c, &few})
            expect(close(double((*got)[i * ldc + j]), wanted, 1e-5, 1e-5 * std::sqrt(double(k))),
                   cat(set.isa, " gemm ", name(dtype), " ", m, " x ", n, " x ", k, got == &few ? " (few rows)" : ""));
        }
    }
  }
}

/// The largest relative error over a dense sample, in units of float's spacing.
void check_accuracy(const Kernels& set) {
  struct Function {
    Opcode op;
    double (*exact)(double);
    double low, high, ulps;
  };
  const Function functions[] = {{Opcode::kExp, [](double x) { return std::exp(x); }, -87, 88, 3},
                                {Opcode::kLog, [](double x) { return std::log(x); }, 1e-38, 50, 2},
                                {Opcode::kTanh, [](double x) { return std::tanh(x); }, -9, 9, 3},
                                {Opcode::kErf, [](double x) { return std::erf(x); }, -5, 5, 3},
                                {Opcode::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80, 4}};
  for (const Function& f : functions) {
    constexpr int64_t kSamples = 200001;
    std::vector<float> x(kSamples), y(kSamples);
    for (int64_t i = 0; i < kSamples; ++i) x[i] = float(f.low + (f.high - f.low) * double(i) / (kSamples - 1));
    set.unary(f.op, RegType::kF32)(y.data(), x.data(), kSamples);
    double worst = 0;
    for (int64_t i = 0; i < kSamples; ++i) {
      const double exact = f.exact(x[i]);
      if (exact != 0) worst = std::max(worst, std::fabs(y[i] - exact) / std::fabs(exact));
    }
    expect(worst < f.ulps * 0x1p-23, cat(set.isa, " ", name(f.op), ": error of ", worst * 0x1p23, " units"));
  }
}

}  // namespace

int main() {
  const Kernels& plain = available_kernels().front();
  for (const Kernels& set : available_kernels()) {
    compare_elementwise(set, plain);
    compare_memory(set, plain);
    for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) compare_gemm<float>(set, t);
    compare_gemm<double>(set, DType::kF64);
    for (const DType t : {DType::kI64, DType::kU8, DType::kI32}) compare_gemm<int64_t>(set, t);
    check_accuracy(set);
    std::printf("%s ", set.isa);
  }
  return finish("test_host_kernels");
}
