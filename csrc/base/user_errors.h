// Errors of the caller that the front end tells apart by their type.
#pragma once
#include <cstdint>
#include <string>

#include "base/check.h"

namespace ark {

/// A run met an index outside of its tensor (mapped to ark_torch.errors.IndexOutOfRange).
struct IndexOutOfRange : UserError {
  int64_t index, size;
  std::string op;

  /// `more`: what else there is to say of the place.
  IndexOutOfRange(int64_t wrong, int64_t limit, std::string name, const std::string& more = "")
      : UserError(cat("index ", wrong, " is out of range for size ", limit, " in op '", name, "'", more)),
        index(wrong),
        size(limit),
        op(std::move(name)) {}
};

/// An argument is not what the graph was compiled for (mapped to ark_torch.errors.ArgumentRefused).
struct ArgumentRefused : UserError {
  std::string argument;  // "input 3 (x)"

  ArgumentRefused(std::string which, const std::string& problem)
      : UserError(cat(which, ": ", problem)), argument(std::move(which)) {}
};

/// The ranks of a group want different things of it (mapped to ark_torch.errors.RanksDisagree).
struct RanksDisagree : UserError {
  using UserError::UserError;
};
/// A launch that needs all ranks, some of which call its collectives instead: nothing has run, and this rank has to do
/// so too (mapped to ark_torch.errors.RanksApart, which no user sees).
struct RanksApart : UserError {
  using UserError::UserError;
};

}  // namespace ark
