#include "planner/fuse/affine.h"

#include <algorithm>
#include <numeric>

namespace ark::planner {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

/// Joins c * q * (x / (d * q)) and c * ((x / d) % q) to c * (x / d). True when it found such a pair.
bool join_pair(Expr& expr) {
  for (int i = 0; i < expr.num_terms; ++i) {
    for (int j = 0; j < expr.num_terms; ++j) {
      const Term &high = expr.terms[i], &low = expr.terms[j];
      if (i == j || high.dim != low.dim || high.reg != low.reg || low.mod == 0) continue;
      if (high.div != int64_t{low.div} * low.mod || high.coef != low.coef * low.mod) continue;
      Term joined = low;
      if (int64_t{high.mod} * low.mod > INT32_MAX) continue;
      joined.mod = high.mod == 0 ? 0 : high.mod * low.mod;
      const int first = std::max(i, j), second = std::min(i, j);
      expr.terms[first] = expr.terms[--expr.num_terms];
      expr.terms[second] = expr.terms[--expr.num_terms];
      expr.add(joined);
      return true;
    }
  }
  return false;
}

/// Splits the atom: coef * a = coef * s * (a / s) + coef * (a % s).
bool split_term(const Term& term, int64_t s, Term& high, Term& low) {
  if (s <= 1 || (term.mod != 0 && term.mod % s != 0) || term.div * s > INT32_MAX) return false;
  high = low = term;
  high.div = static_cast<int32_t>(term.div * s);
  high.mod = term.mod == 0 ? 0 : static_cast<int32_t>(term.mod / s);
  high.coef = term.coef * s;
  low.mod = static_cast<int32_t>(s);
  return true;
}

/// The terms of an expression, each perhaps in two parts.
class Terms {
 public:
  void push_back(const Term& term) { terms_[size_++] = term; }
  const Term* begin() const { return terms_.data(); }
  const Term* end() const { return terms_.data() + size_; }

 private:
  std::array<Term, 2 * kMaxTerms> terms_;
  size_t size_ = 0;
};

}  // namespace

int64_t Expr::min() const {
  int64_t sum = constant;
  for (const Term& t : view()) sum += t.coef < 0 ? t.coef * (t.range() - 1) : 0;
  return sum;
}

int64_t Expr::max() const {
  int64_t sum = constant;
  for (const Term& t : view()) sum += t.coef > 0 ? t.coef * (t.range() - 1) : 0;
  return sum;
}

bool Expr::add(const Term& term) {
  if (term.coef == 0) return true;
  Term t = term;
  if (t.mod != 0 && t.mod >= (t.extent + t.div - 1) / t.div) t.mod = 0;
  if (t.range() <= 1) return true;
  for (int i = 0; i < num_terms; ++i) {
    if (!terms[i].same_atom(t)) continue;
    terms[i].coef += t.coef;
    if (terms[i].coef == 0) terms[i] = terms[--num_terms];
    return true;
  }
  if (num_terms == kMaxTerms) return false;
  terms[num_terms++] = t;
  return true;
}

bool Expr::add(const Expr& other, int64_t scale) {
  constant += other.constant * scale;
  for (Term t : other.view()) {
    t.coef *= scale;
    if (!add(t)) return false;
  }
  if (num_terms > 1) {
    while (join_pair(*this)) {
    }
  }
  return true;
}

bool operator==(const Expr& a, const Expr& b) {
  if (a.constant != b.constant || a.num_terms != b.num_terms) return false;
  for (const Term& t : a.view()) {
    bool found = false;
    for (const Term& u : b.view()) found |= t.same_atom(u) && t.coef == u.coef;
    if (!found) return false;
  }
  return true;
}

Expr constant_expr(int64_t value) {
  Expr expr;
  expr.constant = value;
  return expr;
}

Expr dim_expr(int dim, int64_t extent) {
  Expr expr;
  expr.add(Term{.extent = extent, .dim = static_cast<int16_t>(dim)});
  return expr;
}

Expr reg_expr(int reg, int64_t extent) {
  Expr expr;
  expr.add(Term{.extent = extent, .reg = static_cast<int16_t>(reg)});
  return expr;
}

std::optional<Division> divide(const Expr& expr, int64_t q) {
  if (q == 1) return Division{expr, Expr{}};
  Terms pending;
  for (const Term& t : expr.view()) pending.push_back(t);
  for (int round = 0; round < 2; ++round) {
    Division result;
    Terms rest;
    for (const Term& t : pending) {
      Term high = t, low = t;
      high.coef = t.coef / q;
      low.coef = t.coef % q;
      if (!result.quotient.add(high)) return std::nullopt;
      if (low.coef != 0) rest.push_back(low);
    }
    int64_t lo = expr.constant, hi = expr.constant;
    for (const Term& t : rest) (t.coef < 0 ? lo : hi) += t.coef * (t.range() - 1);
    if (floor_div(lo, q) == floor_div(hi, q)) {
      result.quotient.constant = floor_div(lo, q);
      result.remainder.constant = expr.constant - result.quotient.constant * q;
      for (const Term& t : rest) {
        if (!result.remainder.add(t)) return std::nullopt;
      }
      while (join_pair(result.quotient) || join_pair(result.remainder)) {
      }
      return result;
    }
    if (round == 1) return std::nullopt;
    Terms split;
    for (const Term& t : pending) {
      Term high, low;
      const bool reaches = t.coef > 0 && t.coef < q && t.coef * (t.range() - 1) >= q;
      if (reaches && q % t.coef == 0 && split_term(t, q / t.coef, high, low)) {
        split.push_back(high);
        split.push_back(low);
      } else {
        split.push_back(t);
      }
    }
    pending = split;
  }
  return std::nullopt;
}

std::optional<Expr> substitute(const Expr& expr, std::span<const Expr> values) {
  Expr result = constant_expr(expr.constant);
  for (const Term& t : expr.view()) {
    if (t.dim < 0) {
      if (!result.add(t)) return std::nullopt;
      continue;
    }
    Expr value = values[static_cast<size_t>(t.dim)];
    if (t.div > 1) {
      std::optional<Division> division = divide(value, t.div);
      if (!division) return std::nullopt;
      value = division->quotient;
    }
    if (t.mod > 0) {
      std::optional<Division> division = divide(value, t.mod);
      if (!division) return std::nullopt;
      value = division->remainder;
    }
    if (!result.add(value, t.coef)) return std::nullopt;
  }
  return result;
}

std::optional<Expr> linearize(std::span<const Expr> coords, std::span<const int64_t> strides, int64_t offset) {
  Expr sum = constant_expr(offset);
  for (size_t d = 0; d < coords.size(); ++d) {
    if (strides[d] != 0 && !sum.add(coords[d], strides[d])) return std::nullopt;
  }
  return sum;
}

std::optional<Coords> delinearize(Expr expr, std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  Coords coords(sizes.size());
  std::vector<size_t> order;
  order.reserve(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  for (size_t d : order) {
    if (strides[d] <= 0) return std::nullopt;
    std::optional<Division> division = divide(expr, strides[d]);
    if (!division) return std::nullopt;
    if (division->quotient.min() < 0 || division->quotient.max() >= sizes[d]) return std::nullopt;
    coords[d] = division->quotient;
    expr = division->remainder;
  }
  if (!expr.is_constant() || expr.constant != 0) return std::nullopt;
  return coords;
}

}  // namespace ark::planner
