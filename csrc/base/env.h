// The one reader of environment variables. Text that does not parse as the asked type is refused, never ignored.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ark::env {

/// Each returns `fallback` when the variable is unset or empty and throws UserError, naming the variable, on bad text.
std::string text(const char* variable, std::string_view fallback);
int64_t integer(const char* variable, int64_t fallback, int64_t low, int64_t high);
/// "1", "true", "on", "yes" or "0", "false", "off", "no".
bool flag(const char* variable, bool fallback);
/// Position of the text in `choices`.
int choice(const char* variable, std::span<const std::string_view> choices, int fallback);

}  // namespace ark::env
