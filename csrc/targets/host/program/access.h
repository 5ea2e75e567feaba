// Strided operands over an iteration domain: loads and stores of runs of consecutive elements of the flattened domain.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/abi/abi.h"
#include "targets/host/kernels/kernels.h"

namespace ark::targets::host {

using Dims = std::array<int64_t, abi::kMaxDims>;

/// An operand's strides over a Domain's dimensions.
struct View {
  uint32_t slot = 0;
  DType dtype = DType::kF32;
  int64_t offset = 0;  // elements
  Dims stride{};
  bool linear = false;  // address = offset + linear_stride * flattened index
  int64_t linear_stride = 0;
  bool indexed = false;  // the three fields below
  std::array<int64_t, 2> index_stride{}, index_extent{};
};

/// Dimensions (innermost last) and the operands over them, with neighbours merged where every operand allows it.
struct Domain {
  int num_dims = 0;
  Dims size{};
  int64_t total = 1;
  std::vector<View> views;
  std::vector<int64_t> full_size;  // before merging, for coordinates
};

/// `size` and `strides` (one row per operand, as long as size) in elements.
Domain make_domain(std::span<const int64_t> size, std::span<const abi::Operand> operands,
                   std::span<const abi::Operand> record_operands, int first_stride);

/// Flattened indices [start, start + n).
struct Run {
  int64_t start = 0, n = 0;
};

/// Optional per-element index registers and predicate of a load or store.
struct Lanes {
  const int64_t* index_a = nullptr;
  const int64_t* index_b = nullptr;
  const uint8_t* predicate = nullptr;
};

/// An index that did not lie in [0, limit).
struct IndexError {
  int64_t value = 0, limit = 0;
};

/// Scratch of `n` offsets and `n` predicates for the irregular paths.
struct AccessScratch {
  int64_t* offsets = nullptr;
  uint8_t* predicate = nullptr;
  IndexError* error = nullptr;  // where the last one is noted
};

/// Both return false when an index was out of its extent (that lane reads 0, NaN for floats, or writes nothing).
bool load_run(const Kernels& kernels, const Domain& domain, const View& view, const void* memory, Run run,
              const Lanes& lanes, const AccessScratch& scratch, void* reg);
bool store_run(const Kernels& kernels, const Domain& domain, const View& view, void* memory, Run run,
               const Lanes& lanes, const AccessScratch& scratch, const void* reg);

/// Coordinates along dimension `dim` of the unmerged domain for a run.
void coordinates(const Domain& domain, int dim, Run run, int64_t* out);

}  // namespace ark::targets::host
