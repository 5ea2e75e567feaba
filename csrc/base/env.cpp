#include "base/env.h"

#include <charconv>
#include <cstdlib>

#include "base/check.h"

namespace ark::env {

std::string text(const char* variable, std::string_view fallback) {
  const char* value = std::getenv(variable);
  return value && *value ? std::string(value) : std::string(fallback);
}

int64_t integer(const char* variable, int64_t fallback, int64_t low, int64_t high) {
  std::string value = text(variable, "");
  if (value.empty()) return fallback;
  int64_t result = 0;
  const char* last = value.data() + value.size();
  auto [end, error] = std::from_chars(value.data(), last, result);
  check<UserError>(error == std::errc() && end == last, variable, ": expected an integer, got \"", value, "\"");
  check<UserError>(low <= result && result <= high, variable, ": expected ", low, " to ", high, ", got ", result);
  return result;
}

bool flag(const char* variable, bool fallback) {
  constexpr std::string_view kWords[] = {"0", "1", "false", "true", "off", "on", "no", "yes"};
  int index = choice(variable, kWords, -1);
  return index < 0 ? fallback : index % 2 == 1;
}

int choice(const char* variable, std::span<const std::string_view> choices, int fallback) {
  std::string value = text(variable, "");
  if (value.empty()) return fallback;
  std::string all;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == value) return static_cast<int>(i);
    all += cat(i ? ", " : "", choices[i]);
  }
  throw UserError(cat(variable, ": expected one of ", all, ", got \"", value, "\""));
}

}  // namespace ark::env
