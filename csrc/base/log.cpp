#include "base/log.h"

#include <cstdio>
#include <string>

#include "base/env.h"

namespace ark::log {
namespace {

constexpr std::string_view kNames[] = {"error", "warn", "info", "debug"};

}  // namespace

bool enabled(Level level) {
  static const int kShown = env::choice("ARK_LOG", kNames, static_cast<int>(Level::kWarn));
  return static_cast<int>(level) <= kShown;
}

void write(Level level, std::string_view line) {
  std::string text = cat("ark ", kNames[static_cast<int>(level)], ": ", line, "\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace ark::log
