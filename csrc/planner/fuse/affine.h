// Coordinates as affine expressions over an iteration domain: sums of coef * ((x[d] / div) % mod). Views are turned
// into maps from their coordinates to their owner's, so that a value can be read where no memory holds it.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace ark::planner {

/// coef * ((atom / div) % mod); mod 0: no modulus. The atom is domain dimension `dim`, or program register `reg` (an
/// index that was loaded), both in [0, extent).
struct Term {
  int64_t coef = 1, extent = 1;
  int32_t div = 1, mod = 0;
  int16_t dim = -1, reg = -1;

  bool pure() const { return div == 1 && mod == 0; }
  /// The atom divided and reduced lies in [0, range()).
  int64_t range() const {
    const int64_t quotients = (extent + div - 1) / div;
    return mod > 0 && mod < quotients ? mod : quotients;
  }
  bool same_atom(const Term& o) const { return dim == o.dim && reg == o.reg && div == o.div && mod == o.mod; }
};

inline constexpr int kMaxTerms = 7;

/// constant + sum of terms, normalised: no term of range 1, no two terms of one atom, x / q * q + x % q joined to x.
struct Expr {
  int64_t constant = 0;
  int num_terms = 0;
  union {
    std::array<Term, kMaxTerms> terms;  // the first num_terms; the others are not even initialised
  };

  Expr() {}
  Expr(const Expr& other) { *this = other; }
  Expr& operator=(const Expr& other) {
    constant = other.constant;
    num_terms = other.num_terms;
    std::memmove(&terms, &other.terms, static_cast<size_t>(num_terms) * sizeof(Term));
    return *this;
  }

  std::span<const Term> view() const { return {terms.data(), static_cast<size_t>(num_terms)}; }
  bool is_constant() const { return num_terms == 0; }
  int64_t min() const;
  int64_t max() const;
  /// False when there are too many terms (the expression is then useless).
  bool add(const Term& term);
  bool add(const Expr& other, int64_t scale = 1);
  friend bool operator==(const Expr& a, const Expr& b);
};

using Coords = std::vector<Expr>;

Expr constant_expr(int64_t value);
Expr dim_expr(int dim, int64_t extent);
Expr reg_expr(int reg, int64_t extent);

/// expr = quotient * q + remainder with remainder in [0, q) everywhere, if both are expressions; terms may be split.
struct Division {
  Expr quotient, remainder;
};
std::optional<Division> divide(const Expr& expr, int64_t q);

/// expr with dimension d replaced by values[d].
std::optional<Expr> substitute(const Expr& expr, std::span<const Expr> values);

/// offset + sum of coords[d] * strides[d].
std::optional<Expr> linearize(std::span<const Expr> coords, std::span<const int64_t> strides, int64_t offset);

/// Coordinates in a dense tensor (any order of dimensions) of the element at the linear place `expr` of its storage.
std::optional<Coords> delinearize(Expr expr, std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace ark::planner
